"""Rejection sampling priced: against greedy accounting, enumeration of all runs, a draft loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve, Timings
from cook.scoring.price import price
from cook.scoring.sampled import (
    SampledReply,
    acceptance_probabilities,
    expected_run,
    predict_sampled,
)
from cook.scoring.simulate import Positions, Profile, simulate

TIMES = Timings(
    verify=BatchCurve((10, 200), (1, 3, 9), ((1.5e-3, 2.1e-3, 5e-3), (1.7e-3, 2.5e-3, 6e-3))),
    draft=BatchCurve((10,), (1, 9), ((2e-4, 6e-4),)),
    target_sample_s=1e-5,
    draft_sample_s=2e-6,
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
    assert found.breakdown.total_s == pytest.approx(price(run, 20, TIMES, MAINLINE).total_s)


def test_weights_and_missing_times() -> None:
    short = SampledReply(15, np.array([1.0, 0.5, 0.5]), 3, weight=2.0)
    with_times = predict_sampled([short], 2, TIMES, MAINLINE)
    assert with_times.decode_tokens_per_s is not None
    without = predict_sampled([short], 2, None, MAINLINE)
    assert (without.decode_tokens_per_s, without.breakdown) == (None, None)
    assert without.acceptance == with_times.acceptance
    alone = predict_sampled([SampledReply(15, short.accept, 3)], 2, TIMES, MAINLINE)
    assert alone.decode_tokens_per_s == pytest.approx(with_times.decode_tokens_per_s)
    with pytest.raises(InputError):
        predict_sampled([], 2, TIMES, MAINLINE)


def enumerate_runs(accept: list[float], n_max: int, limit: int) -> tuple[float, float, float]:
    """(drafted, accepted, steps), by following every branch."""

    def go(i: int) -> tuple[float, float, float]:
        if i >= len(accept):
            return 0.0, 0.0, 0.0
        length = max(0, min(n_max, limit - i - 1))
        total = np.array([length, 0.0, 1.0])
        chance = 1.0
        for k in range(min(length, len(accept) - i)):
            total += chance * (1 - accept[i + k]) * (np.array(go(i + k + 1)) + np.array([0, k, 0]))
            chance *= accept[i + k]
        reach = min(length, len(accept) - i)
        total += chance * (np.array(go(i + reach + 1)) + np.array([0, reach, 0]))
        return float(total[0]), float(total[1]), float(total[2])

    return go(1)


@settings(max_examples=60, deadline=None)
@given(
    accept=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    n_max=st.integers(0, 5),
    slack=st.integers(0, 4),
)
def test_equals_enumeration(accept: list[float], n_max: int, slack: int) -> None:
    limit = len(accept) + slack
    got = expected_run(accept, n_max, limit)
    drafted, accepted, steps = enumerate_runs(accept, n_max, limit)
    assert got.draft_n == pytest.approx(drafted, abs=1e-9)
    assert got.draft_n_accepted == pytest.approx(accepted, abs=1e-9)
    assert got.steps == pytest.approx(steps, abs=1e-9)


def test_equals_a_live_rejection_loop() -> None:
    """A Markov target and draft over 6 tokens: accepted per cycle, live and from traces."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(6) * 0.8, 6)
    q = 0.6 * p + 0.4 * rng.dirichlet(np.ones(6), 6)
    n, n_max, replies = 40, 3, 400
    live = traced = 0.0
    for _ in range(replies):
        text = [int(rng.integers(6))]
        cycles = accepted = 0
        while len(text) < n:
            draft, state = [], text[-1]
            for _ in range(min(n_max, n - len(text) - 1)):
                state = int(rng.choice(6, p=q[state]))
                draft.append(state)
            cycles += 1
            for token in draft:
                now = text[-1]
                if rng.random() < min(1.0, p[now, token] / q[now, token]):
                    text.append(token)
                    accepted += 1
                    continue
                rest = np.maximum(p[now] - q[now], 0)
                text.append(int(rng.choice(6, p=rest / rest.sum())))
                break
            else:
                text.append(int(rng.choice(6, p=p[text[-1]])))
        live += accepted
        plain = [int(rng.integers(6))]
        while len(plain) < n:
            plain.append(int(rng.choice(6, p=p[plain[-1]])))
        before, after = np.array(plain[:-1]), np.array(plain[1:])
        a = acceptance_probabilities(np.log(p[before, after]), np.log(q[before, after]))
        traced += expected_run(np.concatenate([[0.0], a]), n_max, n).draft_n_accepted
    assert live / replies == pytest.approx(traced / replies, rel=0.02)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(InputError):
        expected_run([0.5, 1.5], 2)
    with pytest.raises(InputError):
        expected_run([0.5, float("nan")], 2)
