"""The Pareto front of size and quality."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cook.report.sections.quality import QualityPoint, pareto

points = st.lists(
    st.builds(
        QualityPoint,
        name=st.just("x"),
        size_bytes=st.integers(1, 50),
        figure=st.floats(1, 50),
        error=st.just(0.1),
    ),
    max_size=20,
)


@given(points)
def test_the_front_is_what_nothing_beats(given_points: list[QualityPoint]) -> None:
    front = pareto(given_points)
    for point in front:
        assert not [
            p
            for p in given_points
            if p.size_bytes <= point.size_bytes
            and p.figure <= point.figure
            and (p.size_bytes, p.figure) != (point.size_bytes, point.figure)
        ]
    for point in given_points:
        assert any(p.size_bytes <= point.size_bytes and p.figure <= point.figure for p in front), (
            "everything else is beaten or equalled"
        )
