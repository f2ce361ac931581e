"""Costs add up to seconds."""

from __future__ import annotations

import pytest

from cook.graph.step import Cost


def test_a_cost_adds_up() -> None:
    cost = Cost((2e9,), 8e9, 0.0, 40e9)
    assert cost.nominal_s == pytest.approx(0.4 + 2.0 + 1.0 + 1.0)
    assert cost.seconds(2.0, 3.0) == pytest.approx(2 * (2.0 + 1.0) + 3 * (0.4 + 1.0))
    assert cost.held_bytes == 2_000_000_000
    assert Cost((2.0, 3.0), memory_bytes=5.0).held_bytes == 5
