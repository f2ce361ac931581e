"""Section: acceptance against draft speed, with the curves of equal decode speed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from cook.record.record import Record
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import (
    Scored,
    at_common_setting,
    draft_of,
    finite,
    order_of,
    picked_draft,
    prompts_of,
)
from cook.report.document import Section, figures
from cook.report.numbers import counts
from cook.report.ratios import acceptance_error

TITLE = "Acceptance against draft speed"
CURVES = 5
MOST_LABELS = 14
LEAST_POINTS = 6.0
"""Of acceptance, on the axis."""


@dataclass(frozen=True)
class FrontierPoint:
    """One draft: its own decode speed in tokens/s, and its acceptance as a share."""

    name: str
    speed: float
    acceptance: float
    scored: Scored
    error: float | None = None
    """Standard error of the acceptance, where there are prompts enough to say."""


@dataclass(frozen=True)
class Cost:
    """Seconds a cycle of ``n_max`` drafted tokens: ``fixed`` + ``per_slowness`` / draft speed."""

    n_max: int
    fixed: float
    per_slowness: float

    def speed(self, acceptance: float, draft_speed: float) -> float:
        """Decode speed, tokens/s."""
        tokens = 1 + acceptance * self.n_max
        return tokens / (self.fixed + self.per_slowness / draft_speed)

    def acceptance(self, speed: float, draft_speed: float) -> float:
        """The acceptance that gives ``speed`` with a draft of ``draft_speed``."""
        return (speed * (self.fixed + self.per_slowness / draft_speed) - 1) / self.n_max


def section(record: Record) -> Section:
    """The scatter at the setting that most drafts share."""
    chosen, every = at_common_setting(record, "predicted")
    points = [p for one in every if (p := _point(record, one)) is not None]
    if not points:
        reasons = {d.speed_reason for d in record.drafts if d.speed_reason}
        why = sorted(reasons)[0] if reasons else "no draft has both acceptance and a speed alone"
        return Section("frontier", TITLE, absent=why)
    cost = _cost(points)
    best = picked_draft(record)
    ordered = sorted(points, key=lambda p: -p.acceptance)
    alt = (
        f"Scatter of {len(points)} drafts at {chosen}: "
        + "; ".join(f"{p.name} {p.acceptance:.1%} at {p.speed:.0f} t/s" for p in ordered[:8])
        + "."
    )
    numbers = order_of(record)

    def draw(sheet: Sheet) -> None:
        _draw(sheet, points, cost, best, numbers)

    table = figures(
        ("draft", "draft alone t/s", "accepted", "acceptance", "predicted decode t/s"),
        (
            (
                p.name,
                f"{p.speed:.1f}",
                counts(p.scored.figures),
                f"{p.acceptance:.1%}",
                None if (speed := p.scored.figures.decode_speed) is None else f"{speed:.2f}",
            )
            for p in ordered
        ),
        pick=best,
    )
    lead = (
        f"Every draft at {chosen}. A draft is worth what it accepts and what it costs: along a "
        "dashed curve the decode speed is the same, as predicted from the measured times."
    )
    if any(p.error is not None for p in points):
        lead += " Bars are standard errors, by how prompts differ."
    plot = Plot("frontier", TITLE, alt, draw, height=360, narrow_height=340)
    return Section("frontier", TITLE, lead, (plot, table))


def _point(record: Record, one: Scored) -> FrontierPoint | None:
    draft = draft_of(record, one.candidate)
    speed = finite(draft.speed.tokens_per_s) if draft and draft.speed else None
    rate = finite(one.figures.acceptance_rate)
    if speed is None or speed <= 0 or rate is None:
        return None
    error = acceptance_error(prompts_of(one.candidate, "predicted"))
    return FrontierPoint(one.draft, speed, rate, one, error)


def _cost(points: list[FrontierPoint]) -> Cost | None:
    """What a cycle costs, from the forecasts' own breakdown: medians over the drafts."""
    fixed, per_slowness, lengths = [], [], []
    for point in points:
        found, settings = point.scored.candidate.predicted, point.scored.candidate.settings
        cycles = point.scored.figures.cycles
        if found is None or settings is None or not cycles or settings.n_max < 1:
            continue
        fixed.append((found.verify_s + found.sample_s + found.overhead_s) / cycles)
        per_slowness.append((found.draft_s + found.mirror_s) / cycles * point.speed)
        lengths.append(settings.n_max)
    if not fixed or len(set(lengths)) != 1:
        return None
    costs = finite(median(fixed)), finite(median(per_slowness))
    if costs[0] is None or costs[1] is None or costs[0] <= 0:
        return None
    return Cost(lengths[0], costs[0], costs[1])


def _draw(
    sheet: Sheet,
    points: list[FrontierPoint],
    cost: Cost | None,
    best: str | None,
    numbers: dict[str, int],
) -> None:
    import numpy as np

    axes = sheet.axes("draft alone, tokens/s", "acceptance, %", grid="none")
    speeds = [p.speed for p in points]
    rates = [100 * (p.acceptance + e) for p in points for e in (-(p.error or 0), p.error or 0)]
    left, right = min(speeds), max(speeds)
    room = (right - left) * 0.16 or right * 0.2
    left, right = max(left - room, right * 0.02), right + room * 1.6
    space = max((max(rates) - min(rates)) * 0.2, (LEAST_POINTS - max(rates) + min(rates)) / 2)
    low, high = max(0.0, min(rates) - space), min(100.0, max(rates) + space)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    if cost is not None:
        corners = [cost.speed(y / 100, x) for x in (left, right) for y in (low, high)]
        grid = np.linspace(left, right, 60)
        for speed in np.linspace(min(corners), max(corners), CURVES + 2)[1:-1]:
            heights = [100 * cost.acceptance(float(speed), float(x)) for x in grid]
            axes.plot(grid, heights, "--", color=sheet.colour("muted"), linewidth=0.8, zorder=1)
            floor = low + 0.05 * (high - low)  # a label on the axis itself would cover it
            inside = [(x, y) for x, y in zip(grid, heights, strict=True) if floor < y < high]
            if inside:
                x, y = inside[-1]
                axes.annotate(
                    f"{speed:.3g} t/s",
                    (x, y),
                    xytext=(-2, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    color=sheet.colour("muted"),
                    fontsize=9.5,
                    bbox={"facecolor": sheet.colour("page"), "edgecolor": "none", "pad": 1.0},
                )
    for point in points:
        colour, marker = sheet.series(numbers.get(point.name, 0))
        axes.errorbar(
            [point.speed],
            [100 * point.acceptance],
            yerr=[100 * point.error] if point.error is not None else None,
            fmt=marker,
            color=colour,
            markersize=7,
            elinewidth=1.2,
            capsize=3,
            zorder=3,
        )
    named = [Named(p.speed, 100 * p.acceptance, p.name, p.name == best) for p in points]
    sheet.name(axes, named, MOST_LABELS)
