"""Which numbers of slots are timed, and what their batches hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cook.errors import StepError
from cook.steps.slot_curve import SlotCurveOutcome, _SlotTimes, sequences_for


def test_the_usual_numbers_and_those_asked_for() -> None:
    assert sequences_for([1, 2, 4]) == (1, 2, 3, 4)
    assert sequences_for([5]) == (1, 2, 3, 4, 5)
    assert sequences_for([20]) == (1, 2, 3, 4, 6, 8, 12, 16, 20)


def test_batches_are_priced_by_the_slots_that_they_hold() -> None:
    rows = (((1.0, 2.0),), ((3.0, 4.0),))
    found = SlotCurveOutcome((1, 2), (10,), (1, 5), rows, None).batches
    assert found[1].at(5, 10) == pytest.approx(2.0)
    assert found[2].at(1, 10) == pytest.approx(3.0)


class Noting:
    """A worker that takes a millisecond for each token and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[list[int]], list[list[int]], int, bool]] = []

    def time_slots(
        self,
        before: Sequence[list[int]],
        following: Sequence[list[int]],
        *,
        sequences: int,
        repeats: int,
        all_outputs: bool,
    ) -> tuple[int, ...]:
        self.asked.append((list(before), list(following), sequences, all_outputs))
        return (sequences * len(following[0]) * 1_000_000,) * repeats


def test_slots_hold_stretches_of_their_own() -> None:
    worker: Any = Noting()
    rows = _SlotTimes(worker, range(1000), True, 4, 5).rows(50, (1, 4), (1, 5))
    assert rows == {1: (0.001, 0.005), 4: (0.004, 0.02)}
    before, following, _, every = worker.asked[-1]
    assert len({tuple(text) for text in before}) == 4
    assert len({tuple(text) for text in following}) == 4
    assert {len(text) for text in before} == {50}
    assert every
    assert all(asked[0] == before for asked in worker.asked), "read once for all batches"


def test_a_draft_gives_logits_for_the_token_of_every_slot() -> None:
    worker: Any = Noting()
    _SlotTimes(worker, range(100), False, 2, 5).rows(10, (2,), (1, 5))
    assert {(len(following[0]), every) for _, following, _, every in worker.asked} == {
        (1, True),
        (5, False),
    }


def test_too_short_a_text_is_told() -> None:
    worker: Any = Noting()
    with pytest.raises(StepError, match="the trace has 3 tokens"):
        _SlotTimes(worker, range(3), True, 2, 5)
