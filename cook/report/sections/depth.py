"""Section: how much is accepted at each place of a draft."""

from __future__ import annotations

from cook.record.measured import DepthCount
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import (
    best_of_each,
    drawn,
    not_drawn,
    order_of,
    picked_draft,
    scored,
)
from cook.report.document import Section, figures

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
    numbers, best = order_of(record), picked_draft(record)
    lines = {name: longest[name] for name in drawn(order, MOST_LINES, best)}
    alt = "Share accepted at each position of a draft: " + "; ".join(
        f"{name} {_rate(counts[0])} at position 1, {_rate(counts[-1])} at position "
        f"{counts[-1].depth}"
        for name, counts in list(lines.items())[:6]
    )

    def draw(sheet: Sheet) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = sheet.axes("position in the draft", "accepted, %")
        for name, counts in lines.items():
            points = [(c.depth, 100 * c.accepted / c.drafted) for c in counts]
            sheet.line(axes, numbers.get(name, 0), points, name, strong=name == best)
        axes.set_ylim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        sheet.legend(axes)

    depths = sorted({d.depth for counts in longest.values() for d in counts})
    cells = {
        name: {c.depth: f"{c.accepted}/{c.drafted}" for c in counts}
        for name, counts in longest.items()
    }
    table = figures(
        ("draft", *map(str, depths)),
        ((name, *map(cells[name].get, depths)) for name in order),
        title="Figures: accepted/drafted by position",
        pick=best,
    )
    lead = (
        "Of the tokens drafted at each place of a draft, the share that the target accepted: a "
        "token counts only if all before it did. Every draft at its longest setting, as replayed."
    )
    plot = Plot("depth", TITLE, alt + ".", draw)
    return Section("depth", TITLE, lead, (plot, *not_drawn(order, lines), table))


def _rate(count: DepthCount) -> str:
    return f"{count.accepted / count.drafted:.1%}"
