"""Seconds of steps at one pace of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.pace import NEAR_S, Pace
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Mode, Output
from tests.graph.cluster_steps import Nap


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


class Clock:
    """A reference whose batches take a millisecond."""

    def time_batch(self, *_: object, repeats: int, **__: object) -> Any:
        return SimpleNamespace(decode_ns=np.full(repeats, 1e6))


def test_a_study_that_was_ended_goes_on(tmp_path: Path) -> None:
    worker: Any = Clock()
    diary, file = tmp_path / "diary", tmp_path / "pace.json"
    naps = [Nap(word, diary) for word in "abc"]
    for asked in (naps[:2], naps):
        pace = Pace.of(worker, file)
        store = Store(tmp_path / "store")
        with Executor(store, Output(Mode.QUIET), logs=tmp_path / "logs", threads=1) as executor:
            pace.run(executor, asked)
    assert [line.split()[0] for line in diary.read_text().splitlines()] == ["a", "b", "c"]
    assert [nap.key for nap in naps] == list(pace.spans)
    assert len(pace.looks) == 3 + 2, "before the first step of a run that is new, and after each"
    again = Pace.of(worker, file)
    assert (again.looks, again.spans) == (pace.looks, pace.spans)
    assert pace.factors() == {nap.key: 1.0 for nap in naps}
