"""Seconds of steps at one pace of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from bench.pace import NEAR_S, Pace


def test_steps_of_a_slow_time_are_taken_to_the_usual_one() -> None:
    """The machine is a third slower in the last of three stretches, and one look is far off."""
    worker: Any = None
    pace = Pace(worker)
    for minute in range(30):
        seconds = 0.04 if minute >= 20 else 0.03
        pace.looks += [(60.0 * minute + s, seconds) for s in (0.0, 20.0, 40.0)]
        pace.spans[f"step {minute}"] = 60.0 * minute + 5, 60.0 * minute + 15
    at, seconds = pace.looks[6]
    pace.looks[6] = at, 5 * seconds
    found = pace.factors()
    assert found["step 2"] == found["step 10"] == 1.0
    assert found["step 25"] == pytest.approx(0.75)
    assert found["step 18"] == 1.0, f"{NEAR_S:g} s do not reach into the next stretch"
