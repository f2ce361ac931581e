"""Rejection sampling priced: against the greedy accounting where chances are 0 or 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.scoring.price import BatchCurve, Timings, price
from cook.scoring.sampled import SampledReply, predict_sampled
from cook.scoring.simulate import Positions, Profile, simulate

TIMES = Timings(
    verify=BatchCurve((10, 200), (1, 3, 9), ((1.5e-3, 2.1e-3, 5e-3), (1.7e-3, 2.5e-3, 6e-3))),
    draft=BatchCurve((10,), (1, 9), ((2e-4, 6e-4),)),
    target_sample_s=1e-5,
    draft_sample_s=2e-6,
    overhead_s=1e-4,
    plain_overhead_s=5e-5,
)
MAINLINE = Profile.MAINLINE_2026_10


@given(st.lists(st.booleans(), min_size=2, max_size=40), st.integers(1, 8))
def test_certain_chances_are_the_greedy_run(match: list[bool], n_max: int) -> None:
    accept = np.array(match, float)
    found = predict_sampled([SampledReply(20, accept, len(match))], n_max, TIMES, MAINLINE)
    text = Positions(20, len(match), np.array(match), n_predict=len(match))
    run = simulate(text, DraftSettings(n_max), MAINLINE)
    assert found.draft_n == pytest.approx(run.draft_n)
    assert found.draft_n_accepted == pytest.approx(run.draft_n_accepted)
    assert found.breakdown is not None
    assert found.breakdown.total_s == pytest.approx(price(run, 20, TIMES, MAINLINE).total_s)


def test_weights_and_missing_times() -> None:
    short = SampledReply(5, np.array([1.0, 0.5, 0.5]), 3, weight=2.0)
    with_times = predict_sampled([short], 2, TIMES, MAINLINE)
    assert with_times.decode_tokens_per_s is not None
    without = predict_sampled([short], 2, None, MAINLINE)
    assert (without.decode_tokens_per_s, without.breakdown) == (None, None)
    assert without.acceptance == with_times.acceptance
    alone = predict_sampled([SampledReply(5, short.accept, 3)], 2, TIMES, MAINLINE)
    assert alone.decode_tokens_per_s == pytest.approx(with_times.decode_tokens_per_s)
    with pytest.raises(InputError):
        predict_sampled([], 2, TIMES, MAINLINE)
