"""Resampled ratios of candidates on the same prompts."""

from __future__ import annotations

import numpy as np
import pytest

from cook.errors import InputError
from cook.scoring.statistics import Measured, few, resampled_ratios


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
        some = whole.subset(drawn)
        one, other = np.log(resampled_ratios(some, rng, 300))
        middle = np.log(some.ratios()[1] / some.ratios()[0])
        off = (other - one - middle) * few(some, 0.95)
        low, high = np.exp(middle + np.quantile(off, [0.025, 0.975]))
        hits += low <= truth[1] / truth[0] <= high
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


def test_what_was_not_measured_cannot_win() -> None:
    one = population(candidates=2)
    seconds = one.denominator.copy()
    seconds[1, 3] = np.nan
    with pytest.raises(InputError, match="not measured"):
        Measured(one.candidates, one.numerator, seconds, one.stratum, one.weight)
    with pytest.raises(InputError):
        Measured(one.candidates, one.numerator, seconds * 0, one.stratum, one.weight)
