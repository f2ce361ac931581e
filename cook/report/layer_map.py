"""Maps of a model: a column a layer, a row a tensor group, each cell as dark as its figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.report.canvas import Sheet, label
from cook.report.palette import ramp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NARROW_MAPS = 3
ROW_PX = 25
EDGE = 2.2
"""Width of the column of tensors that belong to no layer, in shares of a tenth of the layers."""


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


def map_heights(maps: Sequence[LayerMap]) -> tuple[int, int]:
    """Pixels that maps take, two beside each other, and under each other on a phone."""
    rows = [len(one.rows) for one in maps]
    pairs = [max(rows[i : i + 2]) for i in range(0, len(rows), 2)]
    return _height(pairs), _height(rows[:NARROW_MAPS])


def draw_maps(sheet: Sheet, maps: Sequence[LayerMap], ends: tuple[float, float]) -> None:
    """All maps, shaded alike between ``ends``."""
    columns = 1 if sheet.narrow or len(maps) == 1 else 2
    shown = maps[:NARROW_MAPS] if sheet.narrow else maps
    rows_of = [len(one.rows) for one in shown]
    heights = [max(rows_of[i : i + columns]) for i in range(0, len(shown), columns)]
    grid = sheet.figure.subplots(
        len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights}
    ).flatten()
    for unused in grid[len(shown) :]:
        unused.set_axis_off()
    for one, axes in zip(shown, grid, strict=False):
        sheet.dress(axes, grid="none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        layers = 1 + max((c.last_layer for c in one.cells if c.last_layer is not None), default=-1)
        edge = max(layers, 4) * EDGE / 10
        for cell in one.cells:
            _block(sheet, axes, cell, one.rows.index(cell.row), layers, edge, ends, columns)
        axes.set_xlim(-edge, max(layers, 1))
        axes.set_ylim(len(one.rows) - 0.5, -0.5)
        axes.set_yticks(range(len(one.rows)), [row.replace("_", " ") for row in one.rows])
        step = max(1, -(-layers // (8 if sheet.narrow else 16)))
        ticks = list(range(0, layers, step))
        axes.set_xticks([-edge / 2, *(t + 0.5 for t in ticks)], ["-", *(str(t) for t in ticks)])
        axes.set_title(label(one.title, 46), pad=6)
        axes.set_xlabel("layer (-: of no layer)")


def _height(rows: Sequence[int]) -> int:
    """Pixels for maps of so many rows under each other."""
    return 20 + sum(62 + ROW_PX * count for count in rows)


def _block(
    sheet: Sheet,
    axes: Axes,
    cell: LayerCell,
    row: int,
    layers: int,
    edge: float,
    ends: tuple[float, float],
    columns: int,
) -> None:
    """One rectangle with as much of its texts as has room in it."""
    from matplotlib.patches import Rectangle

    if cell.first_layer is None or cell.last_layer is None:
        left, width = -edge, edge * 0.94
    else:
        left, width = float(cell.first_layer), float(cell.last_layer - cell.first_layer + 1)
    fill, ink = ramp(cell.shade, *ends) if cell.shade is not None else ("grid", "ink")
    gap = min(0.06 * width, 0.002 * (layers + edge))
    axes.add_patch(
        Rectangle(
            (left + gap, row - 0.46),
            width - 2 * gap,
            0.92,
            facecolor=sheet.colour(fill),
            edgecolor="none",
        )
    )
    room = width / (max(layers, 1) + edge) * (250 if sheet.narrow else 820 / columns) / 6.4
    text = next((t for t in cell.texts if len(t) <= room), None)
    if text is not None:
        axes.text(
            left + width / 2,
            row,
            text,
            ha="center",
            va="center",
            fontsize=10,
            color=sheet.colour(ink),
        )
