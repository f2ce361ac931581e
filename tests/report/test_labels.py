"""Names beside points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cook.report.labels import OFFSETS, box, overlap, places

spots = st.lists(st.tuples(st.floats(0, 500), st.floats(0, 300)), max_size=15)


@given(spots, st.floats(10, 120))
def test_every_point_gets_an_offset(points: list[tuple[float, float]], width: float) -> None:
    found = places(points, [width] * len(points), 0, 500)
    assert len(found) == len(points)
    assert set(found) <= set(OFFSETS)


def test_a_lone_name_stands_right_above_its_point() -> None:
    assert places([(100, 100)], [50], 0, 500) == [OFFSETS[0]]


def test_at_the_edge_it_turns_inward() -> None:
    ((dx, _),) = places([(490, 100)], [50], 0, 500)
    assert dx < 0


def test_names_of_coinciding_points_do_not_meet() -> None:
    points = [(200.0, 100.0)] * 6
    boxes = [box(p, 60, o) for p, o in zip(points, places(points, [60] * 6, 0, 500), strict=True)]
    assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if overlap(a, b)]


def test_overlap_is_an_area() -> None:
    assert overlap((0, 0, 4, 4), (2, 1, 9, 3)) == 4
    assert overlap((0, 0, 1, 1), (1, 1, 2, 2)) == 0
