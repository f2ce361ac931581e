"""Section: the order by perplexity beside the order by acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from cook.record.measured import PromptFigures
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import (
    HOW,
    at_common_setting,
    draft_of,
    finite,
    kind_of,
    order_of,
    picked_draft,
    prompts_of,
)
from cook.report.document import Items, Section, Table, Text
from cook.report.numbers import counts, with_error
from cook.report.plain import clipped
from cook.report.ratios import acceptance_ratio

TITLE = "Order by perplexity, order by acceptance"
MOST_NAMED = 8
MOST_DRAWN = 24


@dataclass(frozen=True)
class Ranked:
    """A draft with both figures; ``error`` is the standard error of its perplexity."""

    name: str
    perplexity: float
    error: float
    acceptance: float
    counts: str
    prompts: PromptFigures | None = None


@dataclass(frozen=True)
class Inversion:
    """``better`` has the lower perplexity, and ``worse`` is accepted more often."""

    better: Ranked
    worse: Ranked

    @property
    def beyond_errors(self) -> bool:
        """The perplexities are more than two standard errors of their difference apart.

        Both were measured on the same text, so the errors are correlated and this is cautious.
        """
        apart = self.worse.perplexity - self.better.perplexity
        return apart > 2 * hypot(self.better.error, self.worse.error)


def section(record: Record) -> Section:
    """Both orders side by side, and the pairs that change places by name."""
    kind = kind_of(record)
    chosen, every = at_common_setting(record, kind)
    ranked = []
    for one in every:
        draft = draft_of(record, one.candidate)
        found = draft.quality if draft else None
        perplexity = finite(found.perplexity) if found else None
        rate = finite(one.figures.acceptance_rate)
        if found is None or perplexity is None or rate is None:
            continue
        counted = counts(one.figures) or ""
        error = finite(found.perplexity_error) or 0.0
        prompts = prompts_of(one.candidate, kind)
        ranked.append(Ranked(one.draft, perplexity, error, rate, counted, prompts))
    if len(ranked) < 2:
        return Section(
            "ranks", TITLE, absent="fewer than two drafts have both a perplexity and an acceptance"
        )
    by_perplexity = sorted(ranked, key=lambda r: r.perplexity)
    by_acceptance = sorted(ranked, key=lambda r: -r.acceptance)
    found_pairs = inversions(ranked)
    numbers, best = order_of(record), picked_draft(record)
    drawn = by_perplexity[:MOST_DRAWN]

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, [r for r in by_acceptance if r in drawn], numbers, best)

    table = Table(
        columns=(
            ("rank", "right"),
            ("by PPL", "left"),
            ("PPL", "right"),
            ("by acceptance", "left"),
            ("accepted", "right"),
            ("acceptance", "right"),
        ),
        rows=tuple(
            (
                str(place),
                one.name,
                with_error(one.perplexity, one.error),
                other.name,
                other.counts,
                f"{other.acceptance:.1%}",
            )
            for place, (one, other) in enumerate(zip(by_perplexity, by_acceptance, strict=True), 1)
        ),
        title="Figures",
    )
    alt = (
        "Drafts in order of perplexity, best first: "
        + ", ".join(r.name for r in by_perplexity[:12])
        + "; in order of acceptance: "
        + ", ".join(r.name for r in by_acceptance[:12])
        + "."
    )
    rows = max(len(drawn), 3)
    plot = Plot("ranks", TITLE, alt, draw, height=110 + 26 * rows, narrow_height=110 + 24 * rows)
    lead = f"Acceptance at {chosen}, {HOW[kind]}."
    told: Text | Items = Items(_told(found_pairs, record.pick.confidence))
    if not found_pairs:
        told = Text("No inversion: both orders are the same in this record.")
    return Section("ranks", TITLE, lead, (plot, told, table))


def inversions(ranked: list[Ranked]) -> list[Inversion]:
    """Pairs whose orders differ, the widest in acceptance first."""
    pairs = [
        Inversion(one, other)
        for one in ranked
        for other in ranked
        if one.perplexity < other.perplexity and one.acceptance < other.acceptance
    ]
    return sorted(pairs, key=lambda p: p.better.acceptance - p.worse.acceptance)


def _told(pairs: list[Inversion], confidence: float) -> tuple[str, ...]:
    told = [_named(pair, confidence) for pair in pairs[:MOST_NAMED]]
    if len(pairs) > MOST_NAMED:
        told.append(f"{len(pairs) - MOST_NAMED} more inversions.")
    return tuple(told)


def _named(pair: Inversion, confidence: float) -> str:
    """One inversion in words, and whether either difference is more than noise."""
    better, worse = pair.better, pair.worse
    interval = acceptance_ratio(worse.prompts, better.prompts, confidence)
    sure = ""
    if interval is not None:
        sure = f", paired ratio {interval.low:.3f} to {interval.high:.3f} at {confidence:.0%}"
        sure += "" if interval.low > 1 else ": could be chance"
    return (
        f"{clipped(worse.name, 60)} is accepted more often than {clipped(better.name, 60)} "
        f"({worse.acceptance:.1%} against {better.acceptance:.1%}{sure}) at the higher perplexity "
        f"({worse.perplexity:.3f} against {better.perplexity:.3f}, "
        + ("more than" if pair.beyond_errors else "within")
        + " two standard errors apart)."
    )


def _draw(
    sheet: Sheet,
    by_perplexity: list[Ranked],
    by_acceptance: list[Ranked],
    numbers: dict[str, int],
    best: str | None,
) -> None:
    axes = sheet.axes(grid="none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlim(-0.95, 1.95)
    axes.set_ylim(len(by_perplexity) - 0.4, -1.1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0, -0.75, "by PPL", ha="right", color=sheet.colour("muted"))
    axes.text(1, -0.75, "by acceptance", ha="left", color=sheet.colour("muted"))
    most = 15 if sheet.narrow else 24
    for place, one in enumerate(by_perplexity):
        other = by_acceptance.index(one)
        colour, _ = sheet.series(numbers.get(one.name, 0))
        axes.plot([0, 1], [place, other], "o-", color=colour, markersize=5)
        name = label(one.name, most)
        for x, y, end, text in (
            (-0.06, place, "right", f"{name}  {one.perplexity:.2f}"),
            (1.06, other, "left", f"{one.acceptance:.1%}  {name}"),
        ):
            axes.text(
                x,
                y,
                text,
                ha=end,
                va="center",
                color=sheet.colour("ink"),
                fontweight="bold" if one.name == best else "normal",
            )
