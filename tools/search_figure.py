"""The picture docs/images/search-contests.svg: what searches find at many sizes, and their rivals.

``python -m tools.search_figure`` searches the tables of :mod:`tools.mix_table`, a minute or two.
Lengths are of every prompt of a table, each of a search that did not see it. What it prints is what
the picture shows in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.search_contests import HAND, SIZES, by_hand, contests, tables
from cook.report.canvas import Named, Plot, Sheet, svg_file
from tools.mix_table import MixTable

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "search-contests.svg"
LINES = {"found": "found: least KLD", "perplexity": "least perplexity"}
TITLES = {"demo": "demo: a mixture of experts", "dense": "a dense model made of it"}
MIB = 1 << 20
Points = list[tuple[float, float]]
"""(MiB, tokens a cycle), by rising size."""


@dataclass(frozen=True)
class Panel:
    """One family: ``lines`` by finalist, and the mixes ``by_hand`` by name."""

    family: str
    lines: Mapping[str, Points]
    by_hand: Mapping[str, tuple[float, float]]


def panel(family: str, table: MixTable, count: int) -> Panel:
    """What searches at ``count`` sizes found."""
    held = contests(table, count)
    lines = {
        name: [(c.max_bytes / MIB, c.held_out(name).acceptance_length) for c in held]
        for name in LINES
    }
    mixes = by_hand(table, table.space.bytes_of(table.space.largest))
    hand = {
        name: (table.space.bytes_of(mix) / MIB, table.replies(mix).acceptance_length)
        for name, mix in mixes.items()
    }
    return Panel(family, lines, hand)


def contests_plot(panels: Sequence[Panel]) -> Plot:
    """The panels side by side."""
    alt = " ".join(
        f"{TITLES[p.family].capitalize()}: found "
        + ", ".join(f"{length:.2f} tokens a cycle in {size:.2f} MiB" for size, length in shown)
        + "; by hand "
        + ", ".join(f"{name} {y:.2f} in {x:.2f}" for name, (x, y) in p.by_hand.items())
        + "."
        for p in panels
        for shown in [[p.lines["found"][i] for i in (0, len(p.lines["found"]) // 2, -1)]]
    )

    def draw(sheet: Sheet) -> None:
        for place, one in enumerate(panels, 1):
            title = "tokens a cycle" if place == 1 else ""
            axes = sheet.axes("at most, MiB", title, place=(1, len(panels), place))
            axes.set_title(TITLES[one.family])
            for index, (name, label) in enumerate(LINES.items()):
                sheet.line(axes, index, one.lines[name], label, strong=name == "found")
            for x, y in one.by_hand.values():
                sheet.point(axes, x, y, sheet.colour("ink"), live=False)
            axes.margins(x=0.1, y=0.08)
            named = [Named(x, y, name) for name, (x, y) in one.by_hand.items()]
            if place == 1:
                sheet.legend(axes)
            sheet.name(axes, named, len(HAND))

    title = "Size against acceptance length: found, allocated, by hand"
    return Plot("search-contests", title, alt, draw, height=400, width="full")


def main() -> None:
    plot = contests_plot([panel(name, table, SIZES) for name, table in tables().items()])
    IMAGE.write_text(svg_file(plot) + "\n", encoding="utf-8")
    print(f"{IMAGE}\n{plot.alt}")


if __name__ == "__main__":
    main()
