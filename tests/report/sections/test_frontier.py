"""Curves of equal speed go where the predicted speeds are equal."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.report.canvas import Plot
from cook.report.sections.frontier import Cost, section


@given(
    st.integers(1, 32),
    st.floats(1e-4, 1.0),
    st.floats(1e-3, 10.0),
    st.floats(0.0, 1.0),
    st.floats(1.0, 1e4),
)
def test_the_curve_through_a_point_has_its_speed(
    n_max: int, fixed: float, per_slowness: float, rate: float, speed: float
) -> None:
    cost = Cost(n_max, fixed, per_slowness)
    assert cost.acceptance(cost.speed(rate, speed), speed) == pytest.approx(rate, abs=1e-9)


def test_drafts_without_a_speed_of_their_own_are_left_out(records: ModuleType) -> None:
    found = section(records.hostile())
    assert any(isinstance(block, Plot) for block in found.blocks)
    assert section(records.bare()).absent == "no draft has both acceptance and a speed alone"
