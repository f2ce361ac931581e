"""Prices by hand, identities, and the overhead found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.record.prompt_runs import PromptRun
from cook.scoring.price import (
    MOST_TAKEN_OFF,
    BatchCurve,
    Lived,
    Timings,
    best,
    break_even,
    counted_alike,
    fit_overhead,
    fit_overheads,
    predict,
    price,
)
from cook.scoring.simulate import Positions, Profile, simulate
from cook.steps.curve import grid_of

MAINLINE, IK = Profile.MAINLINE_2026_10, Profile.IK_2026_08


def flat(*seconds: float) -> BatchCurve:
    """A curve over widths 1, 2, ... at one depth."""
    return BatchCurve((0,), tuple(range(1, len(seconds) + 1)), (seconds,))


TIMINGS = Timings(
    verify=flat(*(10.0 + 2.0 * more for more in range(13))),
    draft=flat(*(1.0 + 0.5 * more for more in range(13))),
    target_sample_s=0.1,
    draft_sample_s=0.01,
    overhead_s=0.5,
    target_prefill=BatchCurve((0,), (1, 10), ((0.3, 3.0),)),
    draft_prefill=BatchCurve((0,), (1, 10), ((0.05, 0.5),)),
    request_s=0.7,
)
ALONE = dataclasses.replace(TIMINGS.without_draft(), overhead_s=0.2, request_s=0.4)


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
    assert cost.overhead_s == pytest.approx(3 * 0.5), "the server's step, whether it drafts or not"


def test_ik_catches_up_after_a_full_acceptance() -> None:
    match = np.ones(9, bool)
    run = simulate(Positions(5, 9, match, n_predict=9), DraftSettings(3), IK)
    assert run.length.tolist() == [3, 3]
    cost = price(run, 5, TIMINGS, IK)
    assert cost.draft_s == pytest.approx(6 * 1.01)
    assert cost.mirror_s == pytest.approx(1.0)  # one token, before the second cycle


def test_a_curve_interpolates_and_refuses_what_was_not_measured() -> None:
    curve = BatchCurve((0, 1000), (1, 4), ((1.0, 4.0), (2.0, 6.0)))
    assert curve.at(1, 0) == pytest.approx(1.0)
    assert curve.at(2, 0) == pytest.approx(2.0)
    assert curve.at(4, 500) == pytest.approx(5.0)
    assert curve.at([1, 4], [1000, 1000]) == pytest.approx([2.0, 6.0])
    assert curve.at(1, 1050) == pytest.approx(2.0), "a little beyond the end is the end"
    for width, depth, told in (
        (1, 1051, "after 1051 tokens is to be priced, and measured were depths of 0 to 1000"),
        ([1, 2], [5, 2000], "after 2000 tokens"),
        (7, 0, "a batch of 7 tokens is to be priced, and measured were 1 to 4 tokens at once"),
    ):
        with pytest.raises(InputError, match=told):
            curve.at(width, depth)


def test_a_typed_curve_goes_on_with_its_last_slope() -> None:
    typed = BatchCurve((0,), (1, 4), ((1.0, 4.0),), typed=True)
    assert typed.at([7, 1], [20_000, 0]) == pytest.approx([7.0, 1.0])
    assert BatchCurve((0,), (1,), ((1.0,),), typed=True).at(16, 9) == pytest.approx(1.0)


@given(st.lists(st.floats(0.99, 1.01), min_size=5, max_size=5), st.integers(300, 20_000))
def test_noise_of_one_per_cent_stays_one_per_cent_at_any_depth(
    noise: list[float], depth: int
) -> None:
    def true_s(tokens: float) -> float:
        return 0.2 + tokens * 1e-5

    depths = grid_of([300, 20_000], [400, 20_000], 512).depths
    rows = tuple((true_s(d) * n,) for d, n in zip(depths, noise, strict=True))
    found = BatchCurve(depths, (1,), rows).at(1, depth)
    assert found == pytest.approx(true_s(depth), rel=0.0101)


@given(st.integers(1, 40), st.integers(100, 200))
def test_curve_is_positive_anywhere(width: int, depth: int) -> None:
    curve = BatchCurve((100, 200), (1, 2, 40), ((3.0, 2.5, 4.0), (1.0, 1.1, 1.2)))
    assert curve.at(width, depth) > 0


def test_each_prompt_is_read_once_by_each_model_wherever_the_engine_counts_it() -> None:
    match = np.ones(9, bool)
    for profile in (MAINLINE, IK):
        got = predict([Positions(10, 9, match, n_predict=9)], DraftSettings(3), TIMINGS, profile)
        assert got.prompt_s == pytest.approx((3.0 + 0.5 + 0.7,))
        assert got.end_to_end_tokens_per_s == pytest.approx(
            8 / (got.breakdown.total_s + 3.0 + 0.5 + 0.7)
        )
    # No room for a draft: on ik it then never reads the prompt, on mainline it has read it.
    for profile, read in ((MAINLINE, 0.5), (IK, 0.0)):
        got = predict(
            [Positions(10, 2, match[:2], n_predict=2)], DraftSettings(3), TIMINGS, profile
        )
        assert got.prompt_s == pytest.approx((3.0 + read + 0.7,))


def test_live_requests_of_both_engines_are_counted_alike() -> None:
    """ik's 1,000 ms of decoding hold the 500 in which the draft read the prompt."""
    live = PromptRun("a", "code", 10, 3000.0, 9, 1000.0, 4100.0, 6, 6, None, "", "limit")
    alike = counted_alike(live, TIMINGS, IK)
    assert (alike.prompt_ms, alike.predicted_ms, alike.wall_ms) == (3500.0, 500.0, 4100.0)
    assert alike.draft_prompt_ms == 500.0
    assert counted_alike(live, TIMINGS, MAINLINE) == live
    bare = dataclasses.replace(live, draft_n=None, draft_n_accepted=None)
    assert counted_alike(bare, TIMINGS, IK) == bare, "nothing was drafted, so nothing was read"
    assert counted_alike(live, dataclasses.replace(TIMINGS, draft_prefill=None), IK) == live
    told = dataclasses.replace(live, late_reading_ms=600.0)
    for timings in (TIMINGS, None):
        heard = counted_alike(told, timings, IK)
        assert heard.predicted_ms == 400.0, "as the answer tells, not as it was timed apart"
        assert heard.draft_prompt_ms == 600.0
        assert counted_alike(heard, timings, IK) == heard, "once is enough"
    short = counted_alike(dataclasses.replace(live, predicted_ms=100.0), TIMINGS, IK)
    assert short.predicted_ms == pytest.approx(10.0)


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
    got = predict([reply], DraftSettings(0), ALONE, MAINLINE)
    assert got.breakdown.total_s == pytest.approx(10 * (10.0 + 0.1 + 0.2))
    timed = predict([reply], DraftSettings(0), TIMINGS, MAINLINE)
    assert timed.breakdown.total_s == pytest.approx(10 * (10.0 + 0.1)), "not another server's steps"
    assert (got.acceptance, got.acceptance_length) == (None, None)
    assert got.end_to_end_tokens_per_s == pytest.approx(10 / (10 * 10.3 + 4 * 0.3 + 0.4))


def test_a_prompt_is_priced_by_its_length_and_each_request_once() -> None:
    assert TIMINGS.prompt_s(4) == pytest.approx(4 * 0.35 + 0.7)
    assert ALONE.prompt_s(4) == pytest.approx(4 * 0.3 + 0.4)
    assert Timings(verify=flat(1.0)).prompt_s(4) == 0.0
    # Twice as long is not twice as dear, and nothing is said of what is longer than was timed.
    batched = dataclasses.replace(ALONE, target_prefill=BatchCurve((0,), (1, 7), ((1.0, 2.2),)))
    assert batched.prompt_s(4) == pytest.approx(1.6 + 0.4)
    with pytest.raises(InputError, match="a batch of 20000 tokens"):
        batched.prompt_s(20_000)


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
    hidden = dataclasses.replace(TIMINGS, overhead_s=0.37)
    lived = [Lived(r, 6, price(r, 6, hidden, MAINLINE).total_s) for r in runs]
    assert fit_overhead(lived, TIMINGS, MAINLINE) == pytest.approx(0.37)
    with pytest.raises(InputError):
        fit_overhead([], TIMINGS, MAINLINE)


@pytest.mark.parametrize("n_max", [0, 2, 8])
def test_prices_meet_the_live_speed_of_all_replies_where_a_few_take_far_longer(n_max: int) -> None:
    rng = np.random.default_rng(4)
    settings, timings = DraftSettings(n_max), TIMINGS if n_max else ALONE
    errors = []
    for _ in range(200):
        replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(40)]
        runs = [simulate(r, settings, MAINLINE) for r in replies]
        # A quarter of them fall into times when the machine is half as fast.
        live = [
            price(r, 6, timings, MAINLINE).total_s * (2 if rng.random() < 0.25 else 1) for r in runs
        ]
        lived = [Lived(run, 6, s) for run, s in zip(runs, live, strict=True)]
        if n_max:
            other = [simulate(r, DraftSettings(4), MAINLINE) for r in replies]
            beside = [
                Lived(run, 6, price(run, 6, timings, MAINLINE).total_s * 1.25) for run in other
            ]
            step_s, decode_s = fit_overheads([lived, beside], timings, MAINLINE, 0.02)
        else:
            step_s, decode_s = fit_overhead(lived, timings, MAINLINE), 0.0
        fitted = dataclasses.replace(timings, overhead_s=step_s, decode_overhead_s=decode_s)
        told = sum(price(run, 6, fitted, MAINLINE).total_s for run in runs)
        errors.append(sum(live) / told - 1)
    assert abs(float(np.mean(errors))) < 0.01


def test_overheads_of_a_step_and_of_a_draft_token_are_told_apart() -> None:
    rng = np.random.default_rng(3)
    replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(9)]
    hidden = dataclasses.replace(TIMINGS, overhead_s=0.37, decode_overhead_s=0.11)
    lived = [lived_as(replies, n, hidden) for n in (2, 8)]
    step, token = fit_overheads(lived, TIMINGS, MAINLINE, 1e-6)
    assert step == pytest.approx(0.37)
    assert token == pytest.approx(0.11)
    with pytest.raises(InputError, match="no reply ran live"):
        fit_overheads([[]], TIMINGS, MAINLINE, 0.02)


def test_what_noise_hides_of_overheads_is_not_made_up() -> None:
    """Lengths near each other cannot tell a step from a drafted token where live runs are 5 % off:
    drawn on to other lengths, a bare line through two runs is off by far more than they are."""
    rng = np.random.default_rng(5)
    replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(9)]
    hidden = dataclasses.replace(TIMINGS, overhead_s=0.3, decode_overhead_s=0.05)
    whole = {n: sum(one.live_s for one in lived_as(replies, n, hidden)) for n in (1, 3, 6, 12)}
    errors: dict[float, list[float]] = {1e-6: [], 0.05: []}
    for _ in range(100):
        lived = [
            [
                dataclasses.replace(one, live_s=one.live_s * off)
                for one in lived_as(replies, n, hidden)
            ]
            for n, off in zip((3, 6), 1 + 0.05 * rng.normal(size=2), strict=True)
        ]
        for noise, found in errors.items():
            step, token = fit_overheads(lived, TIMINGS, MAINLINE, noise)
            fitted = dataclasses.replace(TIMINGS, overhead_s=step, decode_overhead_s=token)
            found += [
                sum(one.live_s for one in lived_as(replies, n, fitted)) / whole[n] - 1
                for n in (1, 12)
            ]
    bare, ridge = (float(np.std(found)) for found in errors.values())
    assert bare > 0.09
    assert ridge < 0.6 * bare


def lived_as(replies: Sequence[Positions], n_max: int, timings: Timings) -> list[Lived]:
    """``replies`` as live runs that take what ``timings`` say."""
    runs = [simulate(r, DraftSettings(n_max), MAINLINE) for r in replies]
    return [Lived(run, 6, price(run, 6, timings, MAINLINE).total_s) for run in runs]


def test_a_price_that_is_too_dear_is_corrected() -> None:
    rng = np.random.default_rng(3)
    replies = [Positions(6, 60, rng.random(60) < 0.7, n_predict=60) for _ in range(9)]
    hidden = dataclasses.replace(TIMINGS, overhead_s=-0.6, decode_overhead_s=-0.2)
    lived = [lived_as(replies, n, hidden) for n in (2, 8)]
    assert fit_overheads(lived, TIMINGS, MAINLINE, 1e-6) == pytest.approx((-0.6, -0.2))
    assert fit_overhead(lived[0], TIMINGS, MAINLINE) < -0.6
    quick = dataclasses.replace(ALONE, overhead_s=-0.3, request_s=-0.5)
    assert quick.prompt_s(4) == pytest.approx(4 * 0.3 - 0.5)
    got = predict(replies, DraftSettings(0), quick, MAINLINE)
    assert got.breakdown.total_s == pytest.approx(9 * 59 * (10.0 + 0.1 - 0.3))


@pytest.mark.parametrize("profile", [MAINLINE, IK])
def test_no_step_and_no_prompt_is_corrected_to_nothing(profile: Profile) -> None:
    absurd = dataclasses.replace(TIMINGS, overhead_s=-100.0, decode_overhead_s=-9.0, request_s=-50)
    run = simulate(Positions(6, 60, np.ones(60, bool), n_predict=60), DraftSettings(3), profile)
    timed = dataclasses.replace(TIMINGS, overhead_s=0.0)
    whole, left = (price(run, 6, t, profile).total_s for t in (timed, absurd))
    assert left == pytest.approx((1 - MOST_TAKEN_OFF) * whole)
    assert 0 < absurd.prompt_s(4) < 0.2


def test_missing_draft_times_are_an_error() -> None:
    bare = dataclasses.replace(TIMINGS, draft=None)
    with pytest.raises(InputError, match="draft's times"):
        predict([Positions(4, 9, np.ones(9, bool))], DraftSettings(2), bare, MAINLINE)
