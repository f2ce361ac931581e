"""Section: the end-to-end speedup by category of prompt, the losers marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cook.record.record import Candidate, Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import Basis, at_common_setting, figures_of, named, picked
from cook.report.document import Block, Section, figures
from cook.report.speedups import (
    Speedup,
    base_of,
    drafts_at_their_best,
    speedup,
    speedups_by_category,
)

TITLE = "Speedup by category"
MOST_CATEGORIES = 24
LEAST_SPAN = 0.2
DRIFTED = 0.05
"""Share by which two ways to compare live rounds may part unsaid."""
OUTLIER = 2.5
"""A prompt this far beyond its category's speedup is not drawn; the table counts it."""

Gains = Mapping[str, tuple[Speedup, list[float]]]


def section(record: Record) -> Section:
    """The pick's gain or loss in every category, prompt by prompt; every draft in the table."""
    chosen = _chosen(record)
    if chosen is None:
        return Section("gains", TITLE, absent="no draft has speeds by category")
    candidate, kind, gains = chosen
    rows = sorted(gains, key=lambda name: -gains[name][0].ratio)
    losers = [name for name in rows if gains[name][0].ratio < 1]
    alt = f"{candidate.name}, end-to-end speedup by category: " + "; ".join(
        f"{name} {gains[name][0].ratio:.2f}x" for name in rows[:12]
    )
    drawn = rows[:MOST_CATEGORIES]

    def draw(sheet: Sheet) -> None:
        _draw(sheet, {name: gains[name] for name in drawn}, kind)

    lead = f"{label(candidate.name, 60)}, {kind}, over no draft on the same prompts. "
    lead += (
        f"Slower than no draft on {named(losers)}."
        if losers
        else "Faster than no draft in every category."
    )
    if any(each for _, each in gains.values()):
        lead += " A small dot is one prompt."
    lead += _rounds_told(record, candidate, kind)
    height = 96 + 30 * len(drawn)
    plot = Plot("gains", TITLE, alt + ".", draw, height=height, narrow_height=height + 8)
    return Section("gains", TITLE, lead, (plot, *_tables(record, candidate, kind, gains, rows)))


def _rounds_told(record: Record, candidate: Candidate, kind: Basis) -> str:
    """Where the speeds of all rounds give another speedup than rounds that ran side by side."""
    base = base_of(record, kind)
    found = speedup(record, candidate, kind)
    mine = figures_of(candidate, kind)
    theirs = figures_of(base, kind) if base else None
    if found is None or not (mine and theirs and mine.end_to_end_speed and theirs.end_to_end_speed):
        return ""
    ratio = mine.end_to_end_speed / theirs.end_to_end_speed
    if abs(ratio / found.ratio - 1) <= DRIFTED:
        return ""
    return (
        f" The machine changed between rounds: over all of them, as here, it is {ratio:.2f}x in "
        f"all, and {found.ratio:.2f}x over rounds that ran side by side."
    )


def _chosen(record: Record) -> tuple[Candidate, Basis, Gains] | None:
    """The pick, or the fastest draft where no draft won; live where it ran."""
    winner = picked(record)
    order = [winner] if winner is not None and winner.draft is not None else []
    order += [row.candidate for row in drafts_at_their_best(record)]
    for candidate in order:
        kinds: tuple[Basis, Basis] = ("live", "predicted")
        for kind in kinds:
            if gains := speedups_by_category(record, candidate, kind):
                return candidate, kind, gains
    return None


def _tables(
    record: Record, candidate: Candidate, kind: Basis, gains: Gains, rows: Sequence[str]
) -> list[Block]:
    own = figures(
        ("category", "speedup", "prompts", "prompts slower than no draft"),
        (
            (
                name,
                gains[name][0].told,
                str(gains[name][0].prompts),
                f"{sum(r < 1 for r in gains[name][1])}/{len(gains[name][1])}"
                if gains[name][1]
                else None,
            )
            for name in rows
        ),
        title="Figures",
    )
    chosen, every = at_common_setting(record, "predicted")
    others = {s.draft: speedups_by_category(record, s.candidate, "predicted") for s in every}
    if sum(bool(found) for found in others.values()) < 2:
        return [own]
    every_draft = figures(
        ("draft", *rows),
        (
            (name, *(f"{found[c][0].ratio:.2f}x" if c in found else None for c in rows))
            for name, found in others.items()
        ),
        title=f"Every draft at {chosen}, predicted",
        pick=next(
            (s.draft for s in every if s.candidate.draft == candidate.draft),
            None,
        ),
    )
    return [own, every_draft]


def _draw(sheet: Sheet, gains: Gains, kind: Basis) -> None:
    axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
    every = [s.ratio for s, _ in gains.values()]
    near = [r for s, each in gains.values() for r in each if s.ratio / OUTLIER < r]
    near = [r for r in near if r < OUTLIER * max(every)]
    ends = min(1.0, *every, *near), max(1.0, *every, *near)
    left, right = sheet.ratios(axes, ends, len(gains), LEAST_SPAN)
    for place, (found, each) in enumerate(gains.values()):
        loses = found.ratio < 1
        colour = sheet.colour("s1" if loses else "s0")
        inside = [r for r in each if left < r < right]
        axes.plot(
            inside,
            [place] * len(inside),
            "o",
            markersize=3.2,
            color=sheet.colour("muted"),
            zorder=2,
        )
        reach = found.ends_within(left, right)
        sheet.point(axes, found.ratio, place, colour, live=kind == "live", x_ends=reach)
        told = f"{found.ratio:.2f}x" + (" slower" if loses else "")
        side = colour if loses else sheet.colour("ink")
        sheet.at_the_right(axes, place, told, side, strong=loses)
    sheet.rows(axes, list(gains), 14 if sheet.narrow else 22)
