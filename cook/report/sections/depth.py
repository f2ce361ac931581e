"""Section: how much is accepted at each place of a draft."""

from __future__ import annotations

from cook.record.measured import DepthCount
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import best_of_each, named, order_of, picked_draft, scored
from cook.report.document import Section, Table, Text

TITLE = "Acceptance by position"
MOST_LINES = 12


def section(record: Record) -> Section:
    """A line a draft, at its longest setting."""
    longest: dict[str, tuple[DepthCount, ...]] = {}
    for one in scored(record, "predicted"):
        found = one.candidate.predicted
        counts = tuple(d for d in found.by_depth if d.drafted > 0) if found else ()
        if len(counts) > len(longest.get(one.draft, ())):
            longest[one.draft] = counts
    if not longest:
        return Section(
            "depth",
            TITLE,
            absent="this engine's server counts whole drafts only; a replay counts positions",
        )
    order = [s.draft for s in best_of_each(record, "predicted") if s.draft in longest]
    drawn = order[:MOST_LINES]
    numbers, best = order_of(record), picked_draft(record)
    if best in order and best not in drawn:
        drawn = [*drawn[:-1], best]
    alt = "Share accepted at each position of a draft: " + "; ".join(
        f"{name} {_rate(longest[name][0])} at position 1, {_rate(longest[name][-1])} at position "
        f"{longest[name][-1].depth}"
        for name in drawn[:6]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, {name: longest[name] for name in drawn}, numbers, best)

    depths = sorted({d.depth for counts in longest.values() for d in counts})
    table = Table(
        columns=(("draft", "left"), *((str(d), "right") for d in depths)),
        rows=tuple((name, *(_cell(longest[name], depth) for depth in depths)) for name in order),
        title="Figures: accepted/drafted by position",
        strong=order.index(best) if best in order else None,
    )
    notes = (
        [Text(f"Not drawn: {named(set(order) - set(drawn))}.", quiet=True)]
        if len(order) > len(drawn)
        else []
    )
    lead = (
        "Of the tokens drafted at each place of a draft, the share that the target accepted: a "
        "token counts only if all before it did. Every draft at its longest setting, as replayed."
    )
    plot = Plot("depth", TITLE, alt + ".", draw)
    return Section("depth", TITLE, lead, (plot, *notes, table))


def _rate(count: DepthCount) -> str:
    return f"{count.accepted / count.drafted:.1%}"


def _cell(counts: tuple[DepthCount, ...], depth: int) -> str | None:
    return next((f"{c.accepted}/{c.drafted}" for c in counts if c.depth == depth), None)


def _draw(
    sheet: Sheet,
    lines: dict[str, tuple[DepthCount, ...]],
    numbers: dict[str, int],
    best: str | None,
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = sheet.axes("position in the draft", "accepted, %")
    for name, counts in lines.items():
        colour, marker = sheet.series(numbers.get(name, 0))
        axes.plot(
            [c.depth for c in counts],
            [100 * c.accepted / c.drafted for c in counts],
            marker=marker,
            markersize=4,
            color=colour,
            linewidth=2.8 if name == best else 1.6,
            label=label(name, 16 if sheet.narrow else 22),
        )
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    sheet.legend(axes)
