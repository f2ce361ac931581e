"""Pictures of a search: size against acceptance length, and maps of what its mix has and earns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import log2

from cook.record.search_record import Finalist, SearchRecord
from cook.report.canvas import Named, Plot, Sheet
from cook.report.compared import finite
from cook.report.earnings import Earning, earnings
from cook.report.layer_map import LayerCell, LayerMap, map_plot, shade_of
from cook.report.numbers import binary_unit
from cook.report.search_show import finalists_table, spans_table

MOST_LABELS = 12
APART = 0.012
"""Of the largest size: how far apart finalists of one size stand."""
MOST_TIMES = 16.0
"""Times what bits would earn elsewhere, beyond which a map is no darker."""
_LAYERS = re.compile(r" \d+(?:-\d+)?$")


def front_plot(record: SearchRecord) -> Plot | None:
    """The front as it is predicted, and the finalists; None where nothing drafted."""
    points = [(f, n) for f in record.finalists if (n := finite(f.replayed.acceptance_length))]
    if not points:
        return None
    title = "Acceptance length against size"
    alt = finalists_table(record).only(("mix", "size", "tokens a cycle")).alt(title)

    def draw(sheet: Sheet) -> None:
        _draw_front(sheet, record, points, scaled_front(record))

    return Plot("search-front", title, alt, draw, height=360)


def scaled_front(record: SearchRecord) -> list[tuple[int, float]]:
    """(bytes, tokens a cycle) as predicted, by rising size.

    Predictions are of the prompts that the search saw, finalists of others: so the line is scaled
    by what the finalists that were allocated have there, over what is predicted of their sizes.
    """
    points = sorted(
        (p.size_bytes, p.acceptance_length)
        for p in record.front
        if p.acceptance_length is not None and finite(p.acceptance_length)
    )
    ratios = [
        length / predicted
        for f in record.finalists
        if f.family in ("found", "kld")
        and (length := finite(f.replayed.acceptance_length))
        and (predicted := _at(points, f.size_bytes))
    ]
    scale = sum(ratios) / len(ratios) if ratios else 1.0
    return [(size, scale * length) for size, length in points]


def bits_map(record: SearchRecord) -> Plot | None:
    """Which type each span of the returned mix has; None where none is known."""
    found = [e for e in earnings(record) if e.span.elements]
    if not found:
        return None
    cells = []
    for earning in _in_order(record, found):
        bpw = 8 * earning.chosen.size_bytes / earning.span.elements
        name = earning.chosen.type
        cells.append(_cell(earning, shade_of(bpw), f"{name}  {bpw:.2f}", name, f"{bpw:.1f}"))
    table = spans_table(record, tuple(found)).only(("span", "type", "bpw"))
    title = "Types of the mix that is returned"
    return map_plot("search-bits", title, table.alt(title), [LayerMap(title, tuple(cells))])


def earning_map(record: SearchRecord) -> Plot | None:
    """What each span's bits earn; None where too little was measured."""
    found = earnings(record)
    if not any(e.times_price is not None for e in found):
        return None
    cells = []
    for earning in _in_order(record, found):
        name, times = earning.chosen.type, earning.times_price
        if times is None:
            cells.append(_cell(earning, None, f"{name} is the smallest", "-"))
            continue
        shown = f"{times:.2g}x" if times > 0 else "nothing"
        shade = log2(max(times, 1 / MOST_TIMES))
        cells.append(_cell(earning, shade, f"{name}  {shown}", shown))
    table = spans_table(record, found).only(("span", "type", "earns"))
    title = "What bits earn, over what they would elsewhere"
    ends = -log2(MOST_TIMES) / 2, log2(MOST_TIMES)
    return map_plot("search-earns", title, table.alt(title), [LayerMap(title, tuple(cells))], ends)


def _in_order(record: SearchRecord, found: Sequence[Earning]) -> list[Earning]:
    """As the model has them: by the order of the record's spans."""
    order = {span.name: n for n, span in enumerate(record.spans)}
    return sorted(found, key=lambda e: (e.span.first_layer is not None, order[e.span.name]))


def _cell(earning: Earning, shade: float | None, *texts: str) -> LayerCell:
    span = earning.span
    row = _LAYERS.sub("", span.name)
    return LayerCell(row, span.first_layer, span.last_layer, shade, texts)


def _at(points: Sequence[tuple[int, float]], size_bytes: int) -> float | None:
    """The predicted length at a size; None outside of the front."""
    import numpy as np

    if not points or not points[0][0] <= size_bytes <= points[-1][0] * 1.02:
        return None
    return float(np.interp(size_bytes, [s for s, _ in points], [n for _, n in points]))


def _draw_front(
    sheet: Sheet,
    record: SearchRecord,
    points: Sequence[tuple[Finalist, float]],
    line: Sequence[tuple[int, float]],
) -> None:
    unit, word = binary_unit(max(f.size_bytes for f, _ in points))
    axes = sheet.axes(f"draft's file, {word}", "tokens a cycle")
    if line:
        axes.plot(
            [size / unit for size, _ in line],
            [length for _, length in line],
            color=sheet.colour("muted"),
            linewidth=1.4,
            zorder=1,
            label="the front, predicted",
        )
    ink = sheet.colour("ink")
    axes.axvline(record.aim.max_bytes / unit, color=ink, linestyle=":", linewidth=1.2)
    if record.enough_bytes is not None and line:
        axes.axvspan(
            record.enough_bytes / unit,
            max(line[-1][0], record.enough_bytes) / unit,
            color=sheet.colour("grid"),
            alpha=0.45,
            linewidth=0,
            zorder=0,
            label=f"less than {record.aim.margin:.0%} to gain",
        )
    families = list(dict.fromkeys(f.family for f, _ in points))
    places = _apart([f.size_bytes / unit for f, _ in points])
    heights: list[float] = []
    for (finalist, length), x in zip(points, places, strict=True):
        colour, _ = sheet.series(families.index(finalist.family))
        found = finalist.acceptance_length
        ends = (found.low, found.high) if found is not None else (length, length)
        heights += ends
        sheet.point(axes, x, length, colour, live=finalist.family == "found", y_ends=ends)
    axes.margins(x=0.12, y=0.15)
    if line:  # as much of the front as lies about the finalists
        low, high = 0.7 * min(places), 1.5 * max(places)
        heights += [length for size, length in line if low <= size / unit <= high]
        room = 0.1 * (max(heights) - min(heights)) or 0.1
        axes.set_xlim(low, high)
        axes.set_ylim(min(heights) - room, max(heights) + room)
    sheet.legend(axes)
    named = [
        Named(x, length, finalist.name, finalist.name == record.best)
        for (finalist, length), x in zip(points, places, strict=True)
    ]
    sheet.name(axes, named, MOST_LABELS)


def _apart(places: Sequence[float]) -> list[float]:
    """Points of nearly one size moved a little apart, so that their intervals are all seen; none to
    the right, where they would seem larger than they are allowed to be."""
    step = APART * max(places)
    found = list(places)
    order = sorted(range(len(places)), key=lambda n: -places[n])
    for after, before in pairwise(order):
        found[before] = min(found[before], found[after] - step)
    return found
