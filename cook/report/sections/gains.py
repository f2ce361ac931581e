"""Section: the end-to-end speedup by category of prompt, the losers marked."""

from __future__ import annotations

from collections.abc import Mapping

from cook.record.record import Candidate, Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import named, picked
from cook.report.document import Section, figures
from cook.report.speedups import CategorySpeedup, drafts_at_their_best, speedups_by_category

TITLE = "Speedup by category"
MOST_CATEGORIES = 24
LEAST_SPAN = 0.2
OUTLIER = 2.5
"""A prompt this far beyond its category's speedup is not drawn; the table counts it."""

Gains = Mapping[str, CategorySpeedup]


def section(record: Record) -> Section:
    """The gain or loss of the pick, or of the fastest draft where none won, in every category."""
    chosen = _chosen(record)
    if chosen is None:
        return Section("gains", TITLE, absent="no draft has speeds by category")
    candidate, found = chosen
    gains = dict(sorted(found.items(), key=lambda item: -item[1].ratio))
    losers = [name for name, one in gains.items() if one.ratio < 1]
    live = candidate.live is not None
    alt = f"{candidate.name}, end-to-end speedup by category: " + "; ".join(
        f"{name} {one.ratio:.2f}x" for name, one in [*gains.items()][:12]
    )
    drawn = dict([*gains.items()][:MOST_CATEGORIES])

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, live=live)

    table = figures(
        ("category", "speedup", "requests", "requests slower than no draft"),
        (
            (name, g.text, str(g.requests), f"{sum(r < 1 for r in g.each)}/{g.requests}")
            for name, g in gains.items()
        ),
    )
    kind = "live" if live else "predicted"
    lead = f"{label(candidate.name, 60)}, {kind}, over no draft on the same requests. "
    lead += (
        f"Slower than no draft on {named(losers)}."
        if losers
        else "Faster than no draft in every category."
    )
    height = 96 + 30 * len(drawn)
    plot = Plot("gains", TITLE, alt + ".", draw, height=height, narrow_height=height + 8)
    return Section("gains", TITLE, f"{lead} A small dot is one request.", (plot, table))


def _chosen(record: Record) -> tuple[Candidate, Gains] | None:
    winner = picked(record)
    order = [winner] if winner is not None and winner.draft is not None else []
    order += [row.candidate for row in drafts_at_their_best(record)]
    return next(((c, g) for c in order if (g := speedups_by_category(record, c))), None)


def _draw(sheet: Sheet, gains: Gains, *, live: bool) -> None:
    axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
    every = [g.ratio for g in gains.values()]
    near = [r for g in gains.values() for r in g.each if g.ratio / OUTLIER < r]
    near = [r for r in near if r < OUTLIER * max(every)]
    ends = min(1.0, *every, *near), max(1.0, *every, *near)
    left, right = sheet.ratios(axes, ends, len(gains), LEAST_SPAN)
    for place, found in enumerate(gains.values()):
        loses = found.ratio < 1
        colour = sheet.colour("s1" if loses else "s0")
        inside = [r for r in found.each if left < r < right]
        dots = [place] * len(inside)
        axes.plot(inside, dots, "o", markersize=3.2, color=sheet.colour("muted"), zorder=2)
        sure = found.interval
        reach = (max(sure.low, left), min(sure.high, right)) if sure is not None else None
        sheet.point(axes, found.ratio, place, colour, live=live, x_ends=reach)
        text = f"{found.ratio:.2f}x" + (" slower" if loses else "")
        side = colour if loses else sheet.colour("ink")
        sheet.at_the_right(axes, place, text, side, strong=loses)
    sheet.rows(axes, list(gains), 14 if sheet.narrow else 22)
