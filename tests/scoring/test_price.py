"""Prices by hand, identities, and the overhead found again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.scoring.price import (
    BatchCurve,
    Lived,
    Timings,
    best,
    break_even,
    fit_overhead,
    fit_overheads,
    predict,
    price,
)
from cook.scoring.simulate import Positions, Profile, simulate

MAINLINE, IK = Profile.MAINLINE_2026_10, Profile.IK_2026_08


def flat(*seconds: float) -> BatchCurve:
    """A curve over widths 1, 2, ... at one depth."""
    return BatchCurve((0,), tuple(range(1, len(seconds) + 1)), (seconds,))


TIMINGS = Timings(
    verify=flat(10.0, 12.0, 14.0, 16.0),
    draft=flat(1.0, 1.5, 2.0, 2.5),
    target_sample_s=0.1,
    draft_sample_s=0.01,
    overhead_s=0.5,
    plain_overhead_s=0.2,
    target_prefill=BatchCurve((0,), (1, 10), ((0.3, 3.0),)),
    draft_prefill=BatchCurve((0,), (1, 10), ((0.05, 0.5),)),
    request_s=0.7,
    plain_request_s=0.4,
)


def test_mainline_cycle_priced_by_hand() -> None:
    # cycles: 3 drafted and 1 accepted, then 3 and 3, then a plain step for the last token
    match = np.array([True, True, False, True, True, True, True, True])
    run = simulate(Positions(5, 8, match, n_predict=8), DraftSettings(3), MAINLINE)
    assert run.length.tolist() == [3, 3, 0]
    assert run.accepted.tolist() == [1, 3, 0]
    cost = price(run, 5, TIMINGS, MAINLINE)
    assert cost.verify_s == pytest.approx(16 + 16 + 10)
    assert cost.draft_s == pytest.approx(6 * 1.01)
    assert cost.mirror_s == pytest.approx(2.5 + 2.5 + 1.0)
    assert cost.sample_s == pytest.approx((2 + 4 + 1) * 0.1)
    assert cost.overhead_s == pytest.approx(0.5 + 0.5 + 0.2)


def test_ik_catches_up_after_a_full_acceptance() -> None:
    match = np.ones(9, bool)
    run = simulate(Positions(5, 9, match, n_predict=9), DraftSettings(3), IK)
    assert run.length.tolist() == [3, 3]
    cost = price(run, 5, TIMINGS, IK)
    assert cost.draft_s == pytest.approx(6 * 1.01)
    assert cost.mirror_s == pytest.approx(1.0)  # one token, before the second cycle


def test_curve_interpolates_and_goes_on() -> None:
    curve = BatchCurve((0, 1000), (1, 4), ((1.0, 4.0), (2.0, 6.0)))
    assert curve.at(1, 0) == pytest.approx(1.0)
    assert curve.at(2, 0) == pytest.approx(2.0)
    assert curve.at(4, 500) == pytest.approx(5.0)
    assert curve.at(7, 0) == pytest.approx(7.0)
    assert curve.at([1, 4], [1000, 1000]) == pytest.approx([2.0, 6.0])
    assert curve.at(1, 2000) == pytest.approx(3.0)


@given(st.integers(1, 40), st.integers(0, 5000))
def test_curve_is_positive_anywhere(width: int, depth: int) -> None:
    curve = BatchCurve((100, 200), (1, 2, 8), ((3.0, 2.5, 4.0), (1.0, 1.1, 1.2)))
    assert curve.at(width, depth) > 0


def test_impossible_curves_are_refused() -> None:
    for bad in (
        ((0,), (1, 2), ((1.0,),)),
        ((0, 0), (1,), ((1.0,), (1.0,))),
        ((0,), (2, 1), ((1.0, 1.0),)),
        ((0,), (1,), ((0.0,),)),
        ((0,), (1,), ((float("nan"),),)),
    ):
        with pytest.raises(InputError):
            BatchCurve(*bad)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 3), st.floats(0, 1))
def test_totals_are_harmonic_and_parts_sum(seed: int, n_max: int, skill: float) -> None:
    rng = np.random.default_rng(seed)
    replies = [
        Positions(4, n, rng.random(n) < skill, n_predict=n) for n in rng.integers(2, 30, 5).tolist()
    ]
    names = ["a", "b", "a", "b", "a"]
    weights = [1.0, 2.0, 1.0, 0.5, 1.0]
    got = predict(
        replies, DraftSettings(n_max), TIMINGS, MAINLINE, categories=names, weights=weights
    )
    tokens = [r.reply - 1 for r in replies]
    seconds = np.array(got.per_reply_s)
    total = float(np.dot(weights, seconds))
    assert got.tokens == pytest.approx(np.dot(weights, tokens))
    assert got.decode_tokens_per_s == pytest.approx(np.dot(weights, tokens) / total)
    assert got.breakdown.total_s == pytest.approx(total)
    assert got.end_to_end_tokens_per_s < got.decode_tokens_per_s * 2
    low, high = min(got.categories.values()), max(got.categories.values())
    assert low - 1e-9 <= got.decode_tokens_per_s <= high + 1e-9


def test_without_a_draft_nothing_of_it_is_paid() -> None:
    reply = Positions(4, 11, np.ones(11, bool))
    got = predict([reply], DraftSettings(0), TIMINGS, MAINLINE)
    assert got.breakdown.total_s == pytest.approx(10 * (10.0 + 0.1 + 0.2))
    assert (got.acceptance, got.acceptance_length) == (None, None)
    assert got.end_to_end_tokens_per_s == pytest.approx(11 / (10 * 10.3 + 4 * 0.3 + 0.4))


def test_a_prompt_is_priced_by_its_length_and_each_request_once() -> None:
    assert TIMINGS.prompt_s(4) == pytest.approx(4 * 0.35 + 0.7)
    assert TIMINGS.without_draft().prompt_s(4) == pytest.approx(4 * 0.3 + 0.4)
    assert Timings(verify=flat(1.0)).prompt_s(4) == 0.0
    # Twice as long is not twice as dear, and beyond the last point it goes on as it went.
    batched = dataclasses.replace(TIMINGS, target_prefill=BatchCurve((0,), (1, 4), ((1.0, 1.6),)))
    assert batched.without_draft().prompt_s(7) == pytest.approx(2.2 + 0.4)


def test_a_draft_that_slows_down_loses_to_none() -> None:
    rng = np.random.default_rng(0)
    poor = [Positions(4, 50, rng.random(50) < 0.05, n_predict=50) for _ in range(5)]
    table = [predict(poor, DraftSettings(n), TIMINGS, MAINLINE) for n in range(4)]
    assert best(table).setting.n_max == 0
    good = [Positions(4, 50, rng.random(50) < 0.95, n_predict=50) for _ in range(5)]
    assert (
        best([predict(good, DraftSettings(n), TIMINGS, MAINLINE) for n in range(4)]).setting.n_max
        > 0
    )


@pytest.mark.parametrize("profile", [MAINLINE, IK])
def test_break_even_is_where_speeds_meet(profile: Profile) -> None:
    timings = dataclasses.replace(TIMINGS, verify=flat(10.0, 10.5, 11.0, 11.5))
    level = break_even(timings, DraftSettings(3), profile, depth=5)
    assert level is not None
    rng = np.random.default_rng(1)
    speeds = []
    for skill in np.linspace(0.02, 0.98, 25):
        replies = [Positions(5, 3000, rng.random(3000) < skill)]
        p = predict(replies, DraftSettings(3), timings, profile)
        assert p.acceptance is not None
        speeds.append((p.acceptance, p.decode_tokens_per_s))
    plain = predict(replies, DraftSettings(0), timings, profile).decode_tokens_per_s
    assert all(s < plain for a, s in speeds if a < level - 0.02)
    assert all(s > plain for a, s in speeds if a > level + 0.02)
    assert break_even(timings, DraftSettings(0), profile, 5) is None


def test_overhead_is_found_again() -> None:
    rng = np.random.default_rng(2)
    replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(9)]
    runs = [simulate(r, DraftSettings(3), MAINLINE) for r in replies]
    hidden = dataclasses.replace(TIMINGS, overhead_s=0.37, plain_overhead_s=0.37)
    lived = [Lived(r, 6, price(r, 6, hidden, MAINLINE).total_s) for r in runs]
    assert fit_overhead(lived, TIMINGS, MAINLINE) == pytest.approx(0.37)
    with pytest.raises(InputError):
        fit_overhead([], TIMINGS, MAINLINE)


def test_overheads_of_a_step_and_of_a_draft_token_are_told_apart() -> None:
    rng = np.random.default_rng(3)
    replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(9)]
    runs = [simulate(r, DraftSettings(n), MAINLINE) for n in (2, 8) for r in replies]
    hidden = dataclasses.replace(
        TIMINGS, overhead_s=0.37, plain_overhead_s=0.37, decode_overhead_s=0.11
    )
    lived = [Lived(r, 6, price(r, 6, hidden, MAINLINE).total_s) for r in runs]
    step, token = fit_overheads(lived, TIMINGS, MAINLINE)
    assert step == pytest.approx(0.37)
    assert token == pytest.approx(0.11)
    with pytest.raises(InputError, match="one draft length"):
        fit_overheads(lived[9:], TIMINGS, MAINLINE)
    faster = [Lived(r, 6, price(r, 6, TIMINGS, MAINLINE).total_s * 0.5) for r in runs]
    assert fit_overheads(faster, TIMINGS, MAINLINE) == (0.0, 0.0)


def test_missing_draft_times_are_an_error() -> None:
    bare = dataclasses.replace(TIMINGS, draft=None)
    with pytest.raises(InputError, match="draft's times"):
        predict([Positions(4, 9, np.ones(9, bool))], DraftSettings(2), bare, MAINLINE)
