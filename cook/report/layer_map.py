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
EDGE = 2.2
"""Width of the column of tensors that belong to no layer, in shares of a tenth of the layers."""
TEXT_PX = 820
"""Of a full-width drawing's maps, what is left for cells; a letter takes LETTER_PX of it."""
LETTER_PX = 6.4


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


@dataclass(frozen=True)
class LayerMap:
    """One map, with its rows from the top in the order of their first cells."""

    title: str
    cells: tuple[LayerCell, ...]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))


def shade_of(bpw: float) -> float:
    """Of bits per weight: from 1 to 16, each doubling alike."""
    return log2(min(max(bpw, 1.0), 16.0))


def map_plot(
    name: str,
    title: str,
    alt: str,
    maps: Sequence[LayerMap],
    ends: tuple[float, float] | None = None,
) -> Plot:
    """``maps``, two next to each other, shaded between ``ends`` or else their own extremes."""
    shades = [cell.shade for one in maps for cell in one.cells if cell.shade is not None]
    ends = ends or (min(shades, default=0.0), max(shades, default=1.0))
    columns = min(len(maps), 2)
    rows = [len(one.rows) for one in maps]
    heights = [max(rows[i : i + columns]) for i in range(0, len(rows), columns)]

    def draw(sheet: Sheet) -> None:
        grid = sheet.figure.subplots(
            len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
        ).flatten()
        for unused in grid[len(maps) :]:
            unused.set_axis_off()
        for one, axes in zip(maps, grid, strict=False):
            _draw_map(sheet, axes, one, ends, TEXT_PX / columns)

    height = 20 + sum(62 + ROW_PX * count for count in heights)
    return Plot(name, title, alt, draw, height, "full")


def _draw_map(
    sheet: Sheet, axes: Axes, one: LayerMap, ends: tuple[float, float], width_px: float
) -> None:
    from matplotlib.patches import Rectangle

    for side in axes.spines.values():
        side.set_visible(False)
    layers = 1 + max((c.last_layer for c in one.cells if c.last_layer is not None), default=-1)
    edge = max(layers, 4) * EDGE / 10
    whole = max(layers, 1) + edge
    for cell in one.cells:
        if cell.first_layer is None or cell.last_layer is None:
            left, width = -edge, edge * 0.94
        else:
            left, width = float(cell.first_layer), float(cell.last_layer - cell.first_layer + 1)
        row = one.rows.index(cell.row)
        fill, ink = ramp(cell.shade, *ends) if cell.shade is not None else ("grid", "ink")
        gap = min(0.06 * width, 0.002 * whole)
        block = Rectangle((left + gap, row - 0.46), width - 2 * gap, 0.92)
        block.set(facecolor=sheet.colour(fill), edgecolor="none")
        axes.add_patch(block)
        room = width / whole * width_px / LETTER_PX
        text = next((t for t in cell.texts if len(t) <= room), "")
        middle = left + width / 2
        axes.text(middle, row, text, ha="center", va="center", fontsize=10, color=sheet.colour(ink))
    axes.set_xlim(-edge, max(layers, 1))
    axes.set_ylim(len(one.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(one.rows)), [row.replace("_", " ") for row in one.rows])
    ticks = range(0, layers, max(1, -(-layers // 16)))
    axes.set_xticks([-edge / 2, *(t + 0.5 for t in ticks)], ["-", *map(str, ticks)])
    axes.tick_params(length=0)
    axes.set_title(label(one.title, 46), pad=6)
    axes.set_xlabel("layer (-: of no layer)")
