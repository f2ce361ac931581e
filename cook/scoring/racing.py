"""Racing over rounds of prompts: drop candidates that cannot win, measure the rest further.

Maron and Moore's races with common random numbers: scores are paired by prompt, so only the
spread of *differences* counts. Every round spends part of the error probability
(docs/internals/mixes.md#racing).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from cook.errors import InputError
from cook.formats.arrays import Floats


@dataclass(frozen=True)
class RaceRules:
    """``delta``: probability of dropping the best, over the whole race of ``rounds`` rounds.

    A candidate goes when the lower bound of (leader - candidate) exceeds ``epsilon``, in units of
    the score. The bound takes the means of paired differences to be about normal.
    """

    rounds: int
    delta: float = 0.05
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 < self.delta < 1:
            raise InputError(f"impossible race: {self}")


def student_radius(values: Floats, delta: float) -> float:
    """One-sided radius of the mean at error ``delta`` by Student's t."""
    n = len(values)
    if n < 3:
        return math.inf
    return student_quantile(1.0 - delta, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)


@functools.cache
def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for p in (0.5, 1), by bisection of the exact distribution."""
    low, high = 0.0, 1e3
    while student_upper(high, freedom) > 1.0 - p:
        low, high = high, high * 1e3
    for _ in range(80):
        middle = 0.5 * (low + high)
        if student_upper(middle, freedom) > 1.0 - p:
            low = middle
        else:
            high = middle
    return high


def student_upper(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0: half the regularised incomplete beta function."""
    return 0.5 * _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by Lentz's continued fraction (Numerical Recipes 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1.0), tiny)
    h = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return front * h / a


def survivors(
    scores: Floats, alive: tuple[int, ...], rules: RaceRules, lead: int | None = None
) -> tuple[int, ...]:
    """Which of ``alive`` stay in the race, given ``scores`` [candidates, prompts so far].

    Higher is better. Rows of candidates no longer alive are not looked at. The leader stays;
    ``lead``: who it is to be, None for the one with the highest mean.
    Each round and each rival has an equal share of ``delta`` (Bonferroni).
    """
    if not alive:
        raise InputError("a race without candidates")
    means = scores[list(alive)].mean(axis=1)
    lead = alive[int(np.argmax(means))] if lead is None else lead
    share = rules.delta / (rules.rounds * max(len(scores) - 1, 1))
    kept = []
    for one in alive:
        difference = scores[lead] - scores[one]
        radius = student_radius(difference, share)
        if one == lead or float(difference.mean()) - radius <= rules.epsilon:
            kept.append(one)
    return tuple(kept)
