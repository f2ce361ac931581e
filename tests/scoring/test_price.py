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
from cook.record.measured import Overheads
from cook.record.prompt_runs import PromptRun
from cook.scoring.noise import LogSpread
from cook.scoring.price import (
    MOST_TAKEN_OFF,
    BatchCurve,
    Lived,
    Timings,
    best,
    break_even,
    counted_alike,
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


REPLIES = [
    Positions(6, 60, np.random.default_rng(3).random(60) < 0.7, n_predict=60) for _ in range(9)
]
SURE = 1e-6
"""Noise of a quiet machine."""


def lived_as(n_max: int, timings: Timings, *, off: float = 1.0) -> list[Lived]:
    """:data:`REPLIES` as live runs that take ``off`` times what ``timings`` say."""
    runs = [simulate(r, DraftSettings(n_max), MAINLINE) for r in REPLIES]
    return [Lived(run, 6, off * price(run, 6, timings, MAINLINE).total_s) for run in runs]


def with_overheads(timings: Timings, found: Overheads) -> Timings:
    step_s = found.plain_s if timings.draft is None else found.step_s
    return dataclasses.replace(
        timings, slower=found.slower, overhead_s=step_s, decode_overhead_s=found.decode_s
    )


def total_s(lived: Sequence[Lived]) -> float:
    return sum(one.live_s for one in lived)


def fitted(
    plain: Sequence[Lived], drafted: Sequence[Sequence[Lived]], noise: float, freedom: int = 4
) -> Overheads:
    return fit_overheads(plain, drafted, ALONE, TIMINGS, MAINLINE, LogSpread(noise, freedom))


@given(st.floats(-0.1, 0.2), st.floats(-0.5, 0.5), st.floats(-0.5, 0.5), st.floats(-0.05, 0.05))
def test_overheads_of_a_quiet_machine_are_found_again(
    slower: float, plain_s: float, step_s: float, decode_s: float
) -> None:
    """Of runs that were fitted on, and of a length between theirs."""
    hidden = Overheads(plain_s, step_s, decode_s, slower=slower)
    live = {n: lived_as(n, with_overheads(TIMINGS if n else ALONE, hidden)) for n in (0, 2, 4, 8)}
    found = fitted(live[0], [live[2], live[8]], SURE)
    for n, lived in live.items():
        prices = with_overheads(TIMINGS if n else ALONE, found)
        assert total_s(lived_as(n, prices)) == pytest.approx(total_s(lived), rel=0.01)
    with pytest.raises(InputError, match="no reply ran live"):
        fitted([], [[]], 0.02)


def test_what_all_steps_have_in_common_is_no_seconds() -> None:
    """A machine that was a tenth slower meanwhile was so for a smaller draft, too."""
    off = [lived_as(n, TIMINGS if n else ALONE, off=1.1) for n in (0, 2, 8)]
    found = fitted(off[0], off[1:], 0.02)
    assert found.slower > 0.08
    small = dataclasses.replace(TIMINGS, draft=flat(*(0.2 + 0.1 * more for more in range(13))))
    told = total_s(lived_as(8, with_overheads(small, found)))
    assert told == pytest.approx(1.1 * total_s(lived_as(8, small)), rel=0.01)


def test_prices_meet_the_live_speed_of_all_replies_where_a_few_take_far_longer() -> None:
    """A live speed is of all seconds: the median reply would promise what no server keeps."""
    rng = np.random.default_rng(4)

    def slow(n_max: int) -> list[Lived]:
        """A quarter of them fall into times when the machine is half as fast."""
        lived = 4 * lived_as(n_max, TIMINGS if n_max else ALONE)
        late = set(rng.permutation(len(lived))[: len(lived) // 4].tolist())
        return [
            dataclasses.replace(one, live_s=one.live_s * (2 if i in late else 1))
            for i, one in enumerate(lived)
        ]

    for _ in range(20):
        live = {n: slow(n) for n in (0, 2, 8)}
        found = fitted(live[0], [live[2], live[8]], 0.02)
        for n, lived in live.items():
            told = 4 * total_s(lived_as(n, with_overheads(TIMINGS if n else ALONE, found)))
            assert told == pytest.approx(total_s(lived), rel=0.03)


def test_what_noise_hides_of_overheads_is_not_made_up() -> None:
    """Lengths near each other cannot tell a step from a drafted token where live runs are 5 % off:
    drawn on to other lengths, a bare line through two runs is off by far more than they are."""
    rng = np.random.default_rng(5)
    hidden = dataclasses.replace(TIMINGS, overhead_s=0.3, decode_overhead_s=0.05)
    whole = {n: total_s(lived_as(n, hidden)) for n in (1, 12)}
    errors: dict[str, list[float]] = {"line": [], "fitted": []}
    for _ in range(100):
        offs = 1 + 0.05 * rng.normal(size=2)
        lived = [lived_as(n, hidden, off=off) for n, off in zip((3, 6), offs, strict=True)]
        found = {"line": line_through(lived), "fitted": fitted([], lived, 0.05)}
        for how, overheads in found.items():
            prices = with_overheads(TIMINGS, overheads)
            errors[how] += [total_s(lived_as(n, prices)) / whole[n] - 1 for n in (1, 12)]
    line, ridge = (float(np.std(found)) for found in errors.values())
    assert line > 0.09
    assert ridge < 0.6 * line


def line_through(lived: Sequence[Sequence[Lived]]) -> Overheads:
    """Seconds of a step and of a drafted token, by two runs alone."""
    timed = dataclasses.replace(TIMINGS, overhead_s=0.0)
    rows = [[sum(o.run.steps for o in run), sum(o.run.decodes.sum() for o in run)] for run in lived]
    rest = [sum(o.live_s - price(o.run, 6, timed, MAINLINE).total_s for o in run) for run in lived]
    step_s, decode_s = np.linalg.solve(np.array(rows, float), np.array(rest)).tolist()
    return Overheads(0.0, step_s, decode_s)


def test_runs_that_no_overheads_bring_together_were_noisier_than_was_known() -> None:
    """No draft a quarter faster than priced and 8 tokens a quarter slower, where 2 % of noise was
    thought of: seen on a machine that others share, at 16,384 tokens."""
    lived = [lived_as(n, TIMINGS if n else ALONE, off=off) for n, off in ((0, 0.74), (2, 0.93))]
    found = fitted(lived[0], [lived[1], lived_as(8, TIMINGS, off=1.28)], 0.02, freedom=0)
    for n in (0, 2, 4, 8):
        timings = TIMINGS if n else ALONE
        told = total_s(lived_as(n, with_overheads(timings, found)))
        assert told == pytest.approx(total_s(lived_as(n, timings)), rel=0.12), n


def test_a_price_that_is_too_dear_is_corrected() -> None:
    hidden = dataclasses.replace(TIMINGS, overhead_s=-0.6, decode_overhead_s=-0.2)
    lived = [lived_as(n, hidden) for n in (2, 8)]
    found = with_overheads(TIMINGS, fitted([], lived, SURE))
    for n, live in zip((2, 8), lived, strict=True):
        assert total_s(lived_as(n, found)) == pytest.approx(total_s(live), rel=1e-3)
    quick = dataclasses.replace(ALONE, overhead_s=-0.3, request_s=-0.5)
    assert quick.prompt_s(4) == pytest.approx(4 * 0.3 - 0.5)
    slower = dataclasses.replace(quick, slower=0.1)
    assert slower.prompt_s(4) == pytest.approx(1.1 * 4 * 0.3 - 0.5)
    got = predict(REPLIES, DraftSettings(0), quick, MAINLINE)
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
