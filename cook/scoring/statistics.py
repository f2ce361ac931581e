"""How far the figures of a search may be off: whole prompts are drawn again within their category.

Replies are clusters (tokens within one are not independent, docs/internals/mixes.md), categories
are strata, and mixes are paired: all are drawn with the same prompts. A figure is a ratio of sums
over prompts, tokens over cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats, Ints
from cook.scoring.racing import student_quantile

K = TypeVar("K")
"""How candidates are told apart."""

RESAMPLES = 4000
METHOD = "stratified cluster bootstrap over prompts, paired"
SMALL_STRATUM = 4


@dataclass(frozen=True, eq=False)
class Measured(Generic[K]):
    """Ratios of ``candidates`` on the same prompts.

    ``numerator`` and ``denominator`` [candidates, prompts], e.g. tokens and seconds; ``stratum``
    [prompts] names each prompt's category by a number; ``weight`` [prompts] >= 0 multiplies both.
    """

    candidates: tuple[K, ...]
    numerator: Floats
    denominator: Floats
    stratum: Ints
    weight: Floats

    def __post_init__(self) -> None:
        shape = (len(self.candidates), len(self.stratum))
        if self.numerator.shape != shape or self.denominator.shape != shape:
            raise InputError(f"figures of shape {self.numerator.shape}, not {shape}")
        if shape[1] == 0 or self.weight.shape != (shape[1],):
            raise InputError("no prompts to compare on")
        if not (np.isfinite(self.numerator).all() and np.isfinite(self.denominator).all()):
            raise InputError("a measured figure is not a number: what was not measured cannot win")
        if (self.denominator < 0).any() or (self.denominator @ self.weight <= 0).any():
            raise InputError("a candidate's total denominator is not positive")

    @property
    def prompts(self) -> int:
        return len(self.stratum)

    def ratios(self) -> Floats:
        """Each candidate's total, sum of numerators over sum of denominators."""
        return np.asarray((self.numerator @ self.weight) / (self.denominator @ self.weight))

    def subset(self, prompts: npt.NDArray[np.intp]) -> Measured[K]:
        """The same candidates on some of the prompts."""
        return Measured(
            self.candidates,
            self.numerator[:, prompts],
            self.denominator[:, prompts],
            self.stratum[prompts],
            self.weight[prompts],
        )


def resampled_ratios(
    measured: Measured[Any], rng: np.random.Generator, resamples: int = RESAMPLES
) -> Floats:
    """[candidates, resamples] totals under the stratified cluster bootstrap, paired."""
    return _totals(measured, _resampled_weights(measured, rng, resamples))


def _resampled_weights(measured: Measured[Any], rng: np.random.Generator, resamples: int) -> Floats:
    """[resamples, prompts] weight of every prompt in every resample.

    Whole prompts are drawn with replacement within their stratum, the same draw for every
    candidate. A stratum of n prompts is drawn n - 1 times and weighed n / (n - 1), which removes
    the bootstrap's downward bias of the variance in small strata (Rao and Wu 1988).
    """
    counts = np.zeros((resamples, measured.prompts))
    for members in _strata(measured.stratum):
        n = len(members)
        draws = max(n - 1, 1)
        drawn = rng.multinomial(draws, np.full(n, 1.0 / n), size=resamples)
        counts[:, members] = drawn * (n / draws)
    return counts * measured.weight


def _totals(measured: Measured[Any], weights: Floats, rows: slice | Ints = slice(None)) -> Floats:
    """[rows, resamples] totals of the candidates ``rows``."""
    top, bottom = measured.numerator[rows], measured.denominator[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        totals = (top @ weights.T) / (bottom @ weights.T)
    # a resample without any denominator says nothing: fall back to the estimate itself
    return np.where(np.isfinite(totals), totals, measured.ratios()[rows, None])


def _strata(stratum: Ints) -> list[npt.NDArray[np.intp]]:
    """Members of each stratum; those too small to show their own spread are taken as one."""
    groups = [np.nonzero(stratum == name)[0] for name in np.unique(stratum)]
    small = [g for g in groups if len(g) < SMALL_STRATUM]
    large = [g for g in groups if len(g) >= SMALL_STRATUM]
    if small:
        pooled = np.sort(np.concatenate(small))
        if len(pooled) < SMALL_STRATUM and large:
            large[-1] = np.concatenate([large[-1], pooled])
        else:
            large.append(pooled)
    return large


def few(measured: Measured[Any], confidence: float) -> float:
    """Widening for few prompts: Student's quantile over the normal one, at ``confidence``.

    Kish's effective number of prompts: unequal lengths and weights count for fewer.
    """
    share = measured.denominator.mean(axis=0) * measured.weight
    effective = share.sum() ** 2 / (share**2).sum()
    freedom = max(int(effective) - len(_strata(measured.stratum)), 2)
    quantile = 0.5 + confidence / 2
    return student_quantile(quantile, freedom) / NormalDist().inv_cdf(quantile)
