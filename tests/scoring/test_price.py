"""Prices by hand, and identities."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.record.record import PromptRun
from cook.scoring.batch_curve import BatchCurve, Timings, with_prompt_time_separated
from cook.scoring.compare import by_category
from cook.scoring.iid import break_even
from cook.scoring.price import price
from cook.scoring.simulate import Positions, Profile, Simulation, simulate
from tests.scoring.priced import predict

MAINLINE, IK = Profile.MAINLINE_2026_10, Profile.IK_2026_08


def flat(*seconds: float) -> BatchCurve:
    """A curve over widths 1, 2, ... at one depth."""
    return BatchCurve((0,), tuple(range(1, len(seconds) + 1)), (seconds,))


TIMINGS = Timings(
    verify=flat(*(10.0 + 2.0 * more for more in range(13))),
    draft=flat(*(1.0 + 0.5 * more for more in range(13))),
    target_sample_s=0.1,
    draft_sample_s=0.01,
    target_prefill=BatchCurve((0,), (1, 10), ((0.3, 3.0),)),
    draft_prefill=BatchCurve((0,), (1, 10), ((0.05, 0.5),)),
)
ALONE = TIMINGS.without_draft()


def test_mainline_cycle_priced_by_hand() -> None:
    # cycles: 3 drafted and 1 accepted, then 3 and 3, then a plain step for the last token
    match = np.array([True, True, False, True, True, True, True, True])
    run = simulate(Positions(5, 8, match, n_predict=8), DraftSettings(3), MAINLINE)
    assert run.length.tolist() == [3, 3, 0]
    assert run.accepted.tolist() == [1, 3, 0]
    cost = astuple(price(run, 5, TIMINGS, MAINLINE))
    mirrored, sampled = 2.5 + 2.5 + 1.0, (2 + 4 + 1) * 0.1
    assert cost == pytest.approx((16 + 16 + 10, 6 * 1.01, mirrored, sampled))
    # What comes back into the caches is paid for where anything is drafted.
    cold = astuple(price(run, 5, replace(TIMINGS, reload_s=0.2), MAINLINE))
    assert cold == pytest.approx((16 + 16 + 10, 6 * 1.01 + 2 * 0.2, mirrored, sampled))


def test_ik_catches_up_after_a_full_acceptance() -> None:
    match = np.ones(9, bool)
    run = simulate(Positions(5, 9, match, n_predict=9), DraftSettings(3), IK)
    assert run.length.tolist() == [3, 3]
    # One token is read again, before the second cycle.
    cost = astuple(price(run, 5, TIMINGS, IK))
    assert cost == pytest.approx((16 + 16, 6 * 1.01, 1.0, 8 * 0.1))


def test_ik_catches_up_in_batches_as_wide_as_were_timed() -> None:
    """N-grams drafted for long, so that the draft model reads on from far behind."""
    length, spent = np.array([3]), np.array([3])
    run = Simulation(np.array([41]), length, np.array([0]), spent, np.array([30]))
    cost = price(run, 5, TIMINGS, IK)
    assert cost.mirror_s == pytest.approx(2 * 7.0 + 2.5), "13, 13 and 4 tokens"


@pytest.mark.parametrize("profile", [IK, MAINLINE])
def test_what_ik_accepts_past_the_end_is_no_token_of_a_reply(profile: Profile) -> None:
    """A reply of 4 tokens ends in the midst of a draft of 8, of which all agree; mainline's server
    counts up to the end itself."""
    eog = np.arange(20) == 3
    found = Positions(10, 4, np.ones(20, bool), eog=eog)
    timings = replace(TIMINGS, verify=flat(*(10.0 + more for more in range(20))))
    (run,) = predict([found], DraftSettings(8), timings, profile).runs
    assert (run.predicted_n, run.draft_n, run.draft_n_accepted, run.cycles) == (4, 8, 2, 1)


def test_a_head_of_ik_reads_what_was_accepted() -> None:
    """The batch of what was accepted gives the next draft its first token."""
    right = np.array([0, 1, 0, 3, 2, 1, 1, 0])
    chains = right, np.full((8, 3), 0.9, np.float32)
    found = Positions(5, 8, right > 0, n_predict=8, chains=chains)
    run = simulate(found, DraftSettings(3), Profile.IK_2026_08_MTP)
    assert run.length.tolist() == [3, 3, 0]
    assert run.accepted.tolist() == [1, 3, 0]
    assert run.decodes.tolist() == [3, 2, 0]
    assert run.catch_up.tolist() == [2, 4, 0]
    cost = astuple(price(run, 5, TIMINGS, Profile.IK_2026_08_MTP))
    assert cost == pytest.approx((16 + 16 + 10, 5 * 1.01, 1.51 + 2.51, 7 * 0.1))


def test_each_prompt_is_read_once_by_each_model_wherever_the_engine_counts_it() -> None:
    match = np.ones(9, bool)
    for profile in (MAINLINE, IK):
        got = predict([Positions(10, 9, match, n_predict=9)], DraftSettings(3), TIMINGS, profile)
        assert got.runs[0].prompt_ms == pytest.approx(3500.0)
        whole_s = got.spent.total_s + 3.0 + 0.5
        assert got.figures.end_to_end_speed == pytest.approx(8 / whole_s)
    # No room for a draft: on ik it then never reads the prompt, on mainline it has read it.
    for profile, read in ((MAINLINE, 0.5), (IK, 0.0)):
        few = Positions(10, 2, match[:2], n_predict=2)
        got = predict([few], DraftSettings(3), TIMINGS, profile)
        assert got.runs[0].prompt_ms == pytest.approx(1000 * (3.0 + read))


def test_live_requests_of_both_engines_are_counted_alike() -> None:
    """ik's 1,000 ms of decoding hold the 500 in which the draft read the prompt."""
    live = PromptRun("a", "code", 10, 3000.0, 9, 1000.0, 4100.0, 6, 6, None, "", "limit")
    alike = with_prompt_time_separated(live, TIMINGS, IK)
    assert (alike.prompt_ms, alike.predicted_ms, alike.wall_ms) == (3500.0, 500.0, 4100.0)
    assert alike.draft_prompt_ms == 500.0
    assert with_prompt_time_separated(live, TIMINGS, MAINLINE) == live
    bare = replace(live, draft_n=None, draft_n_accepted=None)
    assert with_prompt_time_separated(bare, TIMINGS, IK) == bare, "nothing was read"
    assert with_prompt_time_separated(live, replace(TIMINGS, draft_prefill=None), IK) == live
    timed = replace(live, late_reading_ms=600.0)
    for timings in (TIMINGS, None):
        heard = with_prompt_time_separated(timed, timings, IK)
        assert heard.predicted_ms == 400.0, "as the answer tells, not as it was timed apart"
        assert heard.draft_prompt_ms == 600.0
        assert with_prompt_time_separated(heard, timings, IK) == heard, "once is enough"
    short = with_prompt_time_separated(replace(live, predicted_ms=100.0), TIMINGS, IK)
    assert short.predicted_ms == pytest.approx(10.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 3), st.floats(0, 1))
def test_totals_are_harmonic_and_parts_sum(seed: int, n_max: int, skill: float) -> None:
    rng = np.random.default_rng(seed)
    replies = [
        Positions(4, n, rng.random(n) < skill, n_predict=n) for n in rng.integers(2, 30, 5).tolist()
    ]
    names = ["a", "b", "a", "b", "a"]
    got = predict(replies, DraftSettings(n_max), TIMINGS, MAINLINE, names)
    tokens = sum(r.reply - 1 for r in replies)
    seconds = sum(run.predicted_ms for run in got.runs) / 1000
    assert got.figures.tokens == tokens
    assert got.figures.decode_speed == pytest.approx(tokens / seconds)
    assert got.spent.total_s == pytest.approx(seconds)
    assert got.figures.end_to_end_speed is not None
    assert got.figures.end_to_end_speed < tokens / seconds
    each = [one.decode_speed or 0.0 for one in by_category(got.runs).values()]
    assert min(each) - 1e-9 <= tokens / seconds <= max(each) + 1e-9
    assert sum(place.drafted for place in got.by_depth) == (got.figures.drafted or 0)


def test_without_a_draft_nothing_of_it_is_paid() -> None:
    reply = Positions(4, 11, np.ones(11, bool))
    got = predict([reply], DraftSettings(0), TIMINGS, MAINLINE)
    assert got.spent.total_s == pytest.approx(10 * (10.0 + 0.1))
    assert (got.figures.acceptance_rate, got.figures.acceptance_length) == (None, None)
    assert got.figures.end_to_end_speed == pytest.approx(10 / (10 * 10.1 + 4 * 0.3))


def test_a_prompt_is_priced_by_its_length_and_each_request_once() -> None:
    assert TIMINGS.prompt_s(4) == pytest.approx(4 * 0.35)
    assert ALONE.prompt_s(4) == pytest.approx(4 * 0.3)
    assert Timings(verify=flat(1.0)).prompt_s(4) == 0.0
    usual, other = (BatchCurve((0,), (1, 10), ((s, 10 * s),)) for s in (0.3, 0.1))
    moved = replace(ALONE, reads_by_rows=((5, usual), (13, other)))
    by_rows = [moved.prompt_s(4, rows) / 4 for rows in (1, 5, 6, 13, 14)]
    assert by_rows == pytest.approx([0.3, 0.3, 0.1, 0.1, 0.3])
    # Twice as long is not twice as dear, and nothing is said of what is longer than was timed.
    batched = replace(ALONE, target_prefill=BatchCurve((0,), (1, 7), ((1.0, 2.2),)))
    assert batched.prompt_s(4) == pytest.approx(1.6)
    with pytest.raises(InputError, match="a batch of 20000 tokens"):
        batched.prompt_s(20_000)


@pytest.mark.parametrize("profile", [MAINLINE, IK])
def test_break_even_is_where_speeds_meet(profile: Profile) -> None:
    timings = replace(TIMINGS, verify=flat(10.0, 10.5, 11.0, 11.5))
    level = break_even(timings, 3, profile, depth=5)
    assert level is not None
    rng, speeds = np.random.default_rng(1), []
    for skill in np.linspace(0.02, 0.98, 25):
        replies = [Positions(5, 3000, rng.random(3000) < skill)]
        p = predict(replies, DraftSettings(3), timings, profile)
        assert p.figures.acceptance_rate is not None
        speeds.append((p.figures.acceptance_rate, p.figures.decode_speed or 0.0))
    plain = predict(replies, DraftSettings(0), timings, profile).figures.decode_speed or 0.0
    assert all(s < plain for a, s in speeds if a < level - 0.02)
    assert all(s > plain for a, s in speeds if a > level + 0.02)
    assert break_even(timings, 0, profile, 5) is None


def test_draft_times_that_are_not_there_are_an_error() -> None:
    bare = replace(TIMINGS, draft=None)
    with pytest.raises(InputError, match="draft's times"):
        predict([Positions(4, 9, np.ones(9, bool))], DraftSettings(2), bare, MAINLINE)
