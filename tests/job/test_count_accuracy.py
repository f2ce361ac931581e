"""How far off counts are: between shapes of a batch, and of n-grams in their servers' order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.job.count_accuracy import acceptance_deviation, acceptance_floor, rival_counts
from cook.job.decide import Dealing
from cook.job.forecast import Forecaster
from cook.record.record import CandidateKey
from cook.steps.deal import Dealt
from tests.job.fabricated import Fabrication, World
from tests.job.laid_out import layout, score
from tests.job.test_forecast import ALL
from tests.job.test_forecast import forecaster as forecaster_of

RIVAL = {"type": "ngram-map-k", "size_n": 2, "size_m": 4}


def dealt(folder: Path, shares: int) -> tuple[CandidateKey, Dealt, Forecaster]:
    """A rival next to no draft, in so many blocks of fresh servers."""
    laid_out = layout(score(rivals=[RIVAL], max_tokens=40))
    fabrication = Fabrication(folder, World(reply_tokens=40))
    plan, bare = laid_out.forecast, laid_out.baseline
    assert plan is not None
    assert bare is not None
    rival = next(c for c in laid_out.grid if c.key.ngram is not None)
    fabrication.run([plan.trace])
    dealing = Dealing(fabrication, True, 600.0, {})
    prompts = rival.live.prompts
    each = len(prompts) // shares
    for start in range(0, len(prompts), each):
        assert dealing.deal([bare, rival], prompts[start : start + each])
    found = dealing.dealt(rival.key)
    assert found is not None
    return rival.key, found, Forecaster(plan, fabrication.outcomes)


@pytest.mark.parametrize("shares", [1, 2])
def test_counts_of_a_server_are_simulated_from_its_own_start(tmp_path: Path, shares: int) -> None:
    key, steps, forecaster = dealt(tmp_path, shares)
    found = rival_counts(key, steps, forecaster)
    assert found.exact == found.requests == 16
    assert found.live_drafted == found.replay_drafted > 0
    assert found.live_accepted == found.replay_accepted
    assert found.passed
    assert key.ngram is not None
    other = replace(key, ngram=replace(key.ngram, size_m=3))
    found = rival_counts(other, steps, forecaster)
    assert found.exact < found.requests, "the numbers are not the server's"
    never = tuple(replace(step, block=7) for step in steps.steps)
    assert rival_counts(key, Dealt(never, steps.name), forecaster) is None, "nothing ran"


def test_the_floor_is_one_draft_in_two_batch_shapes(tmp_path: Path) -> None:
    found, _ = forecaster_of(tmp_path)
    assert (acceptance_floor(found, ALL) or 0) > 0
    failed, _ = forecaster_of(tmp_path / "failed", World(failing=("token by token",)))
    assert acceptance_floor(failed, ALL) is None
    none = replace(found, plan=replace(found.plan, floor_prompts=()))
    assert acceptance_floor(none, ALL) is None


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=20))
def test_a_deviation_of_acceptance_is_of_what_every_request_moves_it_by(
    pairs: list[tuple[int, int]],
) -> None:
    usual = [(drafted, min(drafted, accepted)) for drafted, accepted in pairs]
    assert acceptance_deviation(usual, usual) == 0.0
    one = [(d, a + 1 if not i else a) for i, (d, a) in enumerate(usual)]
    total = sum(d for d, _ in usual)
    assert acceptance_deviation(usual, one) == pytest.approx(1 / total)
    assert acceptance_deviation([(0, 0)], [(3, 1)]) is None
