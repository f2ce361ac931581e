"""Maps of a model: a column a layer, a row a tensor group, each cell as dark as its figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from cook.report.canvas import Plot, Sheet, label
from cook.report.palette import ramp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW_PX = 25
EDGE = 0.22
"""Width of the column of tensors that belong to no layer, in shares of the layers."""
LETTERS = 128
"""Letters next to each other for which the cells of a full-width drawing have room."""


@dataclass(frozen=True)
class LayerCell:
    """Layers that are alike in one row, as a block. ``first_layer`` None: of no layer.

    ``shade`` None: there is no figure. The longest of ``texts`` that has room stands in it.
    """

    row: str
    first_layer: int | None
    last_layer: int | None
    shade: float | None
    texts: tuple[str, ...]


def shade_of(bpw: float) -> float:
    """Of bits per weight: from 1 to 16, each doubling alike."""
    return log2(min(max(bpw, 1.0), 16.0))


def map_plot(
    name: str,
    title: str,
    alt: str,
    maps: Sequence[tuple[str, Sequence[LayerCell]]],
    ends: tuple[float, float] | None = None,
) -> Plot:
    """``maps`` with their titles, two next to each other, rows in the order of their first cells,
    shaded between ``ends`` or else their own extremes."""
    shades = [cell.shade for _, cells in maps for cell in cells if cell.shade is not None]
    shaded = ends or (min(shades, default=0.0), max(shades, default=1.0))
    columns = min(len(maps), 2)
    rows = [len({cell.row for cell in cells}) for _, cells in maps]
    heights = [max(rows[i : i + columns]) for i in range(0, len(rows), columns)]

    def draw(sheet: Sheet) -> None:
        grid = sheet.figure.subplots(
            len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
        ).flatten()
        for unused in grid[len(maps) :]:
            unused.set_axis_off()
        for (name, cells), axes in zip(maps, grid, strict=False):
            axes.set_title(label(name, 46), pad=6)
            _draw_map(sheet, axes, cells, shaded, LETTERS / columns)

    height = 20 + sum(62 + ROW_PX * count for count in heights)
    return Plot(name, title, alt, draw, height, "full")


def _draw_map(
    sheet: Sheet,
    axes: Axes,
    cells: Sequence[LayerCell],
    ends: tuple[float, float],
    letters: float,
) -> None:
    axes.spines[:].set_visible(False)
    rows = list(dict.fromkeys(cell.row for cell in cells))
    layers = 1 + max((c.last_layer for c in cells if c.last_layer is not None), default=-1)
    edge = max(layers, 4) * EDGE
    whole = max(layers, 1) + edge
    for cell in cells:
        if cell.first_layer is None or cell.last_layer is None:
            left, width = -edge, edge * 0.94
        else:
            left, width = float(cell.first_layer), float(cell.last_layer - cell.first_layer + 1)
        row = rows.index(cell.row)
        fill, ink = ramp(cell.shade, *ends) if cell.shade is not None else ("grid", "ink")
        gap = min(0.06 * width, 0.002 * whole)
        axes.barh(row, width - 2 * gap, 0.92, left + gap, color=sheet.colour(fill))
        text = next((t for t in cell.texts if len(t) <= width / whole * letters), "")
        middle = left + width / 2
        axes.text(middle, row, text, ha="center", va="center", fontsize=10, color=sheet.colour(ink))
    axes.set(xlim=(-edge, max(layers, 1)), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows])
    ticks = range(0, layers, max(1, -(-layers // 16)))
    axes.set_xticks([-edge / 2, *(t + 0.5 for t in ticks)], ["-", *map(str, ticks)])
    axes.tick_params(length=0)
    axes.set_xlabel("layer (-: of no layer)")
