"""Intervals that cover, winners that are winners, copies that tie."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.noise import LogSpread
from cook.scoring.statistics import (
    ErrorTerm,
    Measured,
    Standings,
    ratio_interval,
    resampled_ratios,
    sign_flip_p_value,
    standings,
)
from tests.scoring.contests import false_winners, run_contests


def population(
    *, candidates: int = 4, prompts: int = 96, gap: float = 0.02, seed: int = 0
) -> Measured[str]:
    """Tokens and seconds; candidate k is about ``gap`` faster than k - 1; eight categories."""
    rng = np.random.default_rng(seed)
    stratum = np.arange(prompts) % 8
    tokens = rng.integers(40, 128, prompts).astype(float)
    base = 50 * np.exp(rng.normal(0, 0.25, prompts) + 0.06 * stratum)
    speed = [base * (1 + gap * k) * np.exp(rng.normal(0, 0.05, prompts)) for k in range(candidates)]
    return Measured(
        tuple(f"draft-{k}" for k in range(candidates)),
        np.tile(tokens, (candidates, 1)),
        np.array([tokens / s for s in speed]),
        stratum,
        np.ones(prompts),
    )


def test_total_is_the_token_weighted_harmonic_mean() -> None:
    measured = population(candidates=1)
    speed = measured.numerator[0] / measured.denominator[0]
    weights = measured.numerator[0]
    assert measured.ratios()[0] == pytest.approx(weights.sum() / (weights / speed).sum())


def test_interval_covers_the_population() -> None:
    whole = population(candidates=2, prompts=400, gap=0.03, seed=3)
    truth = whole.ratios()
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        drawn = rng.choice(400, 60)
        found = ratio_interval(whole.subset(drawn), 1, 0, rng, resamples=300)
        hits += found.low <= truth[1] / truth[0] <= found.high
    assert 0.91 <= hits / 300 <= 0.99


def test_resamples_have_the_right_spread_in_small_strata() -> None:
    """Two prompts a stratum: the plain bootstrap would show half of the variance."""
    rng = np.random.default_rng(2)
    prompts = 80
    seconds = np.exp(rng.normal(0, 0.2, (1, prompts)))
    strata = np.arange(prompts) // 4
    one = Measured(("a",), np.ones((1, prompts)), seconds, strata, np.ones(prompts))
    spread = float(np.std(np.log(resampled_ratios(one, rng, 4000)[0])))
    within = np.mean([np.var(seconds[0][strata == s], ddof=1) for s in np.unique(strata)])
    assert spread == pytest.approx(np.sqrt(within / prompts) / seconds.mean(), rel=0.1)


def test_a_clear_winner_is_named_alone() -> None:
    found = standings(population(gap=0.2), np.random.default_rng(0), resamples=800)
    assert (found.leader, found.ties, found.decided) == ("draft-3", ("draft-3",), True)
    assert found.probability["draft-3"] > 0.99
    assert sum(found.probability.values()) == pytest.approx(1.0)
    assert found.margin == 0.0


def test_identical_copies_tie_and_are_decided() -> None:
    one = population(candidates=1)
    twins = Measured(
        ("a", "b"),
        np.repeat(one.numerator, 2, axis=0),
        np.repeat(one.denominator, 2, axis=0),
        one.stratum,
        one.weight,
    )
    found = standings(twins, np.random.default_rng(0), resamples=300)
    assert set(found.ties) == set(found.equivalent) == {"a", "b"}
    assert found.decided
    assert found.probability == {"a": 0.5, "b": 0.5}


def test_equivalent_is_only_what_is_shown_to_be_as_good() -> None:
    """Of many candidates the simultaneous bound reaches further than that of one alone."""
    many = population(candidates=40, gap=0.004, prompts=48)
    found = standings(many, np.random.default_rng(0), resamples=800, epsilon=0.05)
    assert found.leader in found.equivalent
    order = dict(zip(many.candidates, many.ratios(), strict=True))
    best = order[found.leader]
    assert len(found.equivalent) > 1
    assert all(order[n] >= 0.95 * best for n in found.equivalent)
    assert all(found.within[n] >= 0.95 for n in found.equivalent)
    noisy = ErrorTerm(LogSpread(0.05, 50), tuple(range(40)))
    unsure = standings(many, np.random.default_rng(0), resamples=800, epsilon=0.05, errors=[noisy])
    assert unsure.equivalent == (unsure.leader,), "noise shows nothing"
    assert len(unsure.ties) > len(found.ties)


def test_thousands_of_candidates_take_little_memory() -> None:
    """Whole tables of candidates and resamples would take a dozen times 64 MB."""
    many = population(candidates=2000, gap=0.0001, prompts=24)
    tracemalloc.start()
    try:
        timing = ErrorTerm(LogSpread(0.01, 10), tuple(range(2000)))
        standings(many, np.random.default_rng(0), errors=[timing])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 30e6


@given(
    candidates=st.integers(1, 30),
    block=st.integers(1, 7),
    seed=st.integers(0, 99),
    timing_sd=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=30, deadline=None)
def test_standings_do_not_depend_on_the_blocks(
    candidates: int, block: int, seed: int, timing_sd: float
) -> None:
    """Nor on the order in which timings are shared."""
    measured = population(candidates=candidates, gap=0.004, prompts=24, seed=seed)
    shared = np.random.default_rng(seed).integers(-1, candidates, candidates).tolist()
    timing = ErrorTerm(LogSpread(timing_sd, 10), tuple(shared))

    def found() -> Standings[str]:
        rng = np.random.default_rng(seed)
        return standings(measured, rng, resamples=200, errors=[timing])

    whole = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cook.scoring.statistics.BLOCK", block)
        parts = found()
    assert parts.probability == whole.probability
    assert (parts.leader, parts.ties) == (whole.leader, whole.ties)
    assert parts.equivalent == whole.equivalent
    assert parts.margin == pytest.approx(whole.margin, rel=1e-9, abs=1e-12)


def test_one_candidate_wins_alone() -> None:
    found = standings(population(candidates=1), np.random.default_rng(0), resamples=100)
    assert (found.ties, found.decided, found.margin) == (("draft-0",), True, 0.0)


def test_stated_confidence_holds_in_contests() -> None:
    for gap in (0.003, 0.02):
        score = run_contests(
            population(gap=gap), np.random.default_rng(4), contests=150, prompts=40, resamples=250
        )
        assert score.covered >= 0.94 * score.contests
        assert score.wrong <= 0.05 * score.contests


def test_copies_measured_apart_rarely_have_a_winner() -> None:
    rng = np.random.default_rng(5)
    wrong = false_winners(population(), 0, rng, trials=200, prompts=40, noise=0.02, resamples=250)
    assert wrong <= 0.085 * 200  # 5 % and three standard errors


@pytest.mark.soak
def test_two_thousand_contests() -> None:
    score = run_contests(population(gap=0.01), np.random.default_rng(6), contests=2000, prompts=60)
    assert score.covered >= 0.94 * 2000
    assert score.right >= 0.94 * score.decided


@given(st.lists(st.floats(-5, 5), min_size=0, max_size=10))
@settings(max_examples=60, deadline=None)
def test_sign_flips_are_exact(values: list[float]) -> None:
    kept = [v for v in values if v != 0]
    p = sign_flip_p_value(values, np.random.default_rng(0))
    if not kept:
        assert p == 1.0
        return
    observed = abs(sum(kept)) * (1 - 1e-12)
    flips = [
        abs(sum(s * v for s, v in zip(signs, kept, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(kept))
    ]
    exact = sum(f >= observed for f in flips) / len(flips)
    assert p == pytest.approx(exact, abs=2.5 / len(flips))
    assert p > 0


def test_many_sign_flips_are_sampled() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p_value(rng.normal(1.0, 1.0, 25), rng, resamples=5000) < 0.01
    assert sign_flip_p_value(rng.normal(0.0, 1.0, 25), rng, resamples=5000) > 0.01


def test_what_was_not_measured_cannot_win() -> None:
    one = population(candidates=2)
    seconds = one.denominator.copy()
    seconds[1, 3] = np.nan
    with pytest.raises(InputError, match="not measured"):
        Measured(one.candidates, one.numerator, seconds, one.stratum, one.weight)
    with pytest.raises(InputError):
        Measured(one.candidates, one.numerator, seconds * 0, one.stratum, one.weight)
