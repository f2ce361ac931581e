"""Contests whose winner is known, to hold the statistics to what they state.

The recorded prompts are taken as the whole population, so the true winner is known; contests on
prompts drawn from it must name it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cook.scoring.statistics import Measured, standings


@dataclass(frozen=True)
class ContestScore:
    """Over ``contests``: how often the true best was among the verdict's ties (``covered``), a
    wrong candidate was named alone (``wrong``), one was named alone at all (``named``), and of
    ``decided`` verdicts how many had a leader within epsilon of the true best (``right``).
    """

    contests: int
    covered: int
    wrong: int
    named: int
    decided: int
    right: int


def run_contests(
    population: Measured[str],
    rng: np.random.Generator,
    *,
    contests: int,
    prompts: int,
    epsilon: float = 0.01,
    confidence: float = 0.95,
    resamples: int = 400,
) -> ContestScore:
    """Draw ``contests`` sets of about ``prompts`` prompts (stratified) and judge each."""
    truth = population.ratios()
    best = population.candidates[int(np.argmax(truth))]
    strata = [np.nonzero(population.stratum == s)[0] for s in np.unique(population.stratum)]
    covered = wrong = named = decided = right = 0
    for _ in range(contests):
        drawn = [
            rng.choice(m, max(2, round(prompts * len(m) / population.prompts))) for m in strata
        ]
        found = standings(
            population.subset(np.concatenate(drawn)),
            rng,
            epsilon=epsilon,
            confidence=confidence,
            resamples=resamples,
        )
        covered += best in found.ties
        alone = len(found.ties) == 1
        named += alone
        wrong += alone and found.leader != best
        decided += found.decided
        lead = truth[population.candidates.index(found.leader)]
        right += found.decided and bool(lead >= truth.max() / (1.0 + epsilon))
    return ContestScore(contests, covered, wrong, named, decided, right)


def false_winners(
    population: Measured[str],
    candidate: int,
    rng: np.random.Generator,
    *,
    trials: int,
    prompts: int,
    noise: float,
    confidence: float = 0.95,
    resamples: int = 400,
) -> int:
    """How often one of two copies of a candidate is named alone.

    Each copy's denominators (seconds) get independent log-normal noise of relative size
    ``noise``, as two independent measurements of the same file have.
    """
    count = 0
    for _ in range(trials):
        drawn = rng.choice(population.prompts, prompts)
        base = population.subset(drawn)
        factor = np.exp(rng.normal(0.0, noise, size=(2, len(drawn))))
        pair = Measured(
            ("one", "two"),
            np.repeat(base.numerator[[candidate]], 2, axis=0),
            base.denominator[[candidate]] * factor,
            base.stratum,
            base.weight,
        )
        found = standings(pair, rng, confidence=confidence, resamples=resamples)
        count += len(found.ties) == 1
    return count
