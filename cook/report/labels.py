"""Where to put names beside points, so that they cover neither each other nor a point."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in pixels."""
OFFSETS = tuple((dx, dy) for dy in (7, -8, 20, -21, 33, -34) for dx in (10, -10))
"""From point to name; a positive x has the name begin there, a negative one end there."""
POINT_PX = 5
HALF_LINE_PX = 6
OUTSIDE = 30
"""What a pixel beyond the edge costs, in square pixels of overlap."""


def places(
    spots: Sequence[tuple[float, float]], widths: Sequence[float], left: float, right: float
) -> list[tuple[int, int]]:
    """An offset for each of ``spots``, whose names are ``widths`` wide; the first choose first.

    Greedy: the least overlap with points and names already placed, within ``left`` and
    ``right``; the first of equals.
    """
    taken: list[Box] = [(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in spots]
    chosen: list[tuple[int, int]] = []
    for spot, width in zip(spots, widths, strict=True):
        costs = []
        for offset in OFFSETS:
            mine = box(spot, width, offset)
            beyond = max(0.0, left - mine[0]) + max(0.0, mine[2] - right)
            costs.append(sum(overlap(mine, other) for other in taken) + OUTSIDE * beyond)
        best = OFFSETS[costs.index(min(costs))]
        taken.append(box(spot, width, best))
        chosen.append(best)
    return chosen


def box(spot: tuple[float, float], width: float, offset: tuple[int, int]) -> Box:
    """What a name covers."""
    (x, y), (dx, dy) = spot, offset
    start = x + dx if dx > 0 else x + dx - width
    return start, y + dy - HALF_LINE_PX, start + width, y + dy + HALF_LINE_PX


def overlap(one: Box, other: Box) -> float:
    """The area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
