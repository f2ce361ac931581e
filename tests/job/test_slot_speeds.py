"""Requests in parallel in a whole build: predicted for every length, live for the best."""

from __future__ import annotations

import pytest

from cook.errors import InputError
from cook.job.run import Built
from cook.job.slot_speeds import as_multiples, slot_plan
from cook.record.record import read_record
from cook.scoring.batch_curve import BatchCurve
from tests.job.fabricated import World
from tests.job.laid_out import layout, score
from tests.job.whole import Building

SLOTS = {"slots": [1, 2, 4]}


def test_every_length_is_predicted_and_the_best_runs_live(built: Building) -> None:
    done = built(score=SLOTS)
    speeds = done.record.slots or ()
    assert [(s.slots, s.settings.n_max if s.settings else None) for s in speeds] == [
        (slots, n_max) for slots in (1, 2, 4) for n_max in (None, 2, 4, 8)
    ]
    for slots in (1, 2, 4):
        here = [s for s in speeds if s.slots == slots]
        best = max((s for s in here if s.settings), key=lambda s: s.predicted_tokens_per_s)
        ran = {s.settings for s in here if s.live_tokens_per_s is not None}
        assert {None, best.settings} <= ran
        assert all((s.reason is None) == (s.live_tokens_per_s is not None) for s in here)
    labels = [step.label for step in done.record.steps if "slots" in step.label]
    assert any(label.startswith("live") for label in labels)
    assert any(label.startswith("verification") for label in labels)
    faster = [max(s.predicted_tokens_per_s for s in speeds if s.slots == n) for n in (1, 2, 4)]
    assert faster == sorted(faster), "the batch of several slots costs little here"
    assert read_record(done.path).slots == speeds


def test_wide_batches_that_are_dear_shorten_the_best_draft(built: Building) -> None:
    dear = World(slope=0.25, accuracy={"small": 0.9, "large": 0.92})
    done = built(dear, score=SLOTS)

    def gain(slots: int) -> float:
        here = [s for s in done.record.slots or () if s.slots == slots]
        bare = next(s for s in here if s.settings is None)
        return max(s.predicted_tokens_per_s for s in here if s.settings) / (
            bare.predicted_tokens_per_s
        )

    assert gain(1) > gain(2) > gain(4)


def test_one_slot_costs_what_it_does_in_a_context_of_its_own() -> None:
    together = {
        1: BatchCurve((10, 100), (1, 3), ((2.0, 3.0), (4.0, 6.0))),
        2: BatchCurve((10, 100), (1, 3), ((3.0, 6.0), (5.0, 12.0))),
    }
    alone = BatchCurve((8, 55, 95), (1, 2, 3), ((1.8, 2.0, 2.7),) * 3)
    found = as_multiples(together, alone)
    assert found[1].at([1, 3], 10) == pytest.approx(alone.at([1, 3], 10))
    assert found[2].at(3, 100) == pytest.approx(2.7 * 12 / 6), "deeper than it was timed alone"
    assert found[2].at(1, 10) == pytest.approx(1.8 * 3 / 2)


def test_what_the_budget_has_no_room_for_is_predicted_and_named(built: Building) -> None:
    done = built(score={**SLOTS, "live_budget": {"minutes": 0.05}})
    speeds = done.record.slots or ()
    assert {(s.live_tokens_per_s, s.reason) for s in speeds} == {(None, "predicted only")}
    assert "no draft at 4 slots" in [left.candidate for left in done.record.left_out]


def test_one_slot_leaves_the_build_as_it_was(made_up: Built) -> None:
    assert made_up.record.slots == ()
    assert not any("slots" in label for label in made_up.ran)


def test_timings_that_fail_leave_the_rest(built: Building) -> None:
    done = built(World(failing=("by slots",)), score=SLOTS)
    assert done.record.slots == ()
    assert done.record.pick.candidate is not None
    assert done.failures


def test_a_batch_that_is_too_narrow_is_refused_before_anything_runs() -> None:
    target = {"source": "/models/target.gguf", "args": {"batch": 16}}
    plan = layout(score(target=target, draft={"n_max": [4]}, slots=[4])).forecast
    assert plan is not None
    with pytest.raises(InputError, match="verify 20 at once, and a batch holds 16"):
        slot_plan(plan, plan.drafts[0], (4,))


def test_slots_are_of_replay() -> None:
    with pytest.raises(ValueError, match="predicted by replay"):
        score(slots=[1, 2], method="live")
