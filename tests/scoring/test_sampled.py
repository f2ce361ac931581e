"""Rejection sampling priced: against greedy accounting, enumeration of all runs, a draft loop.
Other sampling chains: bounds from what is stored, against whole distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.arrays import Floats, Ids
from cook.formats.sampling import Sampling
from cook.scoring.batch_curve import BatchCurve, Timings
from cook.scoring.price import price
from cook.scoring.sampled import (
    SampledReply,
    acceptance_probabilities,
    chain_distribution,
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


def test_weights_and_times_that_are_not_there() -> None:
    short = SampledReply(15, np.array([1.0, 0.5, 0.5]), 3, weight=2.0)
    timed, without = (predict_sampled([short], 2, times, MAINLINE) for times in (TIMES, None))
    assert (without.decode_tokens_per_s, without.breakdown) == (None, None)
    assert without.acceptance == timed.acceptance
    alone = predict_sampled([SampledReply(15, short.accept, 3)], 2, TIMES, MAINLINE)
    assert alone.decode_tokens_per_s == pytest.approx(timed.decode_tokens_per_s)
    with pytest.raises(InputError):
        predict_sampled([], 2, TIMES, MAINLINE)
    for wrong in (1.5, float("nan")):
        with pytest.raises(InputError):
            expected_run([0.5, wrong], 2)


def enumerate_runs(accept: list[float], n_max: int, limit: int) -> tuple[float, ...]:
    """(drafted, accepted, steps), by following every branch."""

    def go(i: int) -> tuple[float, ...]:
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
        return tuple(total.tolist())

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
    counts = got.draft_n, got.draft_n_accepted, got.steps
    assert counts == pytest.approx(enumerate_runs(accept, n_max, limit), abs=1e-9)


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


SLACK = 1e-9


def whole(sampling: Sampling, p: Floats) -> Floats:
    """One distribution through the chain, token by token."""
    order = np.argsort(-p, kind="stable")
    if not sampling.temperature:
        return np.asarray(np.eye(len(p))[order[0]])
    kept = order[: sampling.top_k or len(p)]
    share = p[kept] / p[kept].sum()
    count = int(np.searchsorted(np.cumsum(share), (sampling.top_p or 1.0) - 1e-12)) + 1
    kept = kept[: max(count, 1)] if (sampling.top_p or 1.0) < 1.0 else kept
    kept = kept[p[kept] >= (sampling.min_p or 0.0) * p[kept[0]] * (1 - 1e-12)]
    found = np.zeros(len(p))
    found[kept] = p[kept] ** (1 / sampling.temperature)
    return np.asarray(found / found.sum())


def stored(p: Floats, count: int) -> tuple[Ids, Floats]:
    order = np.argsort(-p, kind="stable")[:count]
    return order.astype(np.int32)[None], np.log(p[order])[None]


@st.composite
def distributions(draw: st.DrawFn) -> Floats:
    weights = draw(st.lists(st.floats(1e-4, 1.0), min_size=6, max_size=24, unique=True))
    p = np.array(weights) ** draw(st.floats(0.5, 4.0))
    return np.asarray(p / p.sum())


@st.composite
def chains(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.6])),
        top_k=draw(st.sampled_from([0, 1, 3, 5])),
        top_p=draw(st.sampled_from([0.37, 0.81, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.07])),
        repeat_penalty=1.0,
    )


@settings(deadline=None)
@given(p=distributions(), sampling=chains(), count=st.integers(5, 24))
def test_what_is_stored_bounds_the_whole(p: Floats, sampling: Sampling, count: int) -> None:
    """``count`` of the tokens are stored; with all of them both ends are the truth."""
    count = min(count, len(p))
    truth = whole(sampling, p)
    found = chain_distribution(sampling, *stored(p, count), len(p))
    for token in range(len(p)):
        chances = found.of(np.array([token], np.int32))
        assert chances.low[0] - SLACK <= truth[token] <= chances.high[0] + SLACK
        if count == len(p):
            assert chances.high[0] == pytest.approx(chances.low[0])


@settings(deadline=None)
@given(data=st.data(), sampling=chains(), count=st.integers(5, 20))
def test_an_overlap_is_between_its_ends(
    data: st.DataObject, sampling: Sampling, count: int
) -> None:
    p = data.draw(distributions())
    q = np.array(data.draw(st.permutations(list(p)))) * 0.5 + p * 0.5
    uncut = Sampling(sampling.temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
    truth = np.minimum(whole(sampling, p), whole(uncut, q)).sum()
    count = min(count, len(p))
    target = chain_distribution(sampling, *stored(p, count), len(p))
    found = target.overlap(chain_distribution(uncut, *stored(q, count), len(p)))
    assert found.low[0] - SLACK <= truth <= found.high[0] + SLACK
    if count == len(p):
        assert found.high[0] == pytest.approx(found.low[0], abs=1e-6)


def test_the_servers_own_chain_needs_no_bound() -> None:
    """Its top_k of 40 is within what a trace keeps."""
    p = np.linspace(1.0, 2.0, 200)[::-1] / np.linspace(1.0, 2.0, 200).sum()
    found = chain_distribution(Sampling(0.8).applied(), *stored(p, 64), len(p))
    assert np.array_equal(found.low, found.high)
    assert (found.rest[0], found.other[0]) == (0.0, 0.0)
