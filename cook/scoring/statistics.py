"""Comparing candidates measured on the same prompts: intervals, who is best, when to stop.

Replies are clusters (tokens within one are not independent; naive binomial bars are 2-3 times
too small, docs/internals/scoring.md#statistics), prompts fall in strata (categories), and
candidates are paired. So everything resamples whole prompts within their category and recomputes
the statistic.

A candidate's figures are per-prompt numerators and denominators: tokens and seconds for speed
(their ratio of sums *is* the token-weighted harmonic mean of the per-prompt speeds), accepted
and drafted tokens for acceptance.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats, Ints
from cook.record.measured import Interval
from cook.scoring.racing import student_quantile

K = TypeVar("K")
"""How candidates are told apart."""

RESAMPLES = 4000
BLOCK = 64
"""Candidates whose resamples are held at a time (2 MB each array)."""
METHOD = "stratified cluster bootstrap over prompts, paired"
# Below this many prompts the bootstrap's bars are too small (arXiv 2503.01747): use permutation.
SMALL_SAMPLE = 30
SMALL_STRATUM = 4
EXACT_FLIPS = 16
"""Prompts up to which all sign flips are tried."""


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


def ratio_interval(
    measured: Measured[Any],
    a: int,
    b: int,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Interval of candidate ``a``'s total over candidate ``b``'s: 1.05 is 5 % better."""
    totals = resampled_ratios(measured, rng, resamples)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(totals[a] / totals[b], [tail, 1.0 - tail])
    return Interval(float(low), float(high), confidence, METHOD)


@dataclass(frozen=True)
class Standings(Generic[K]):
    """Who is best. ``probability`` of each candidate being the best (they sum to 1).

    ``ties``: candidates that cannot be told from the leader (leader included): the true best is
    among them at the confidence asked for, and each is within ``margin`` or not separable.
    ``close``: those of the ties that are not told from the leader either when nobody else is
    asked about. With many candidates a tie may be far behind; to choose it for another reason,
    as being smaller, it must be close.
    ``decided``: the leader is within ``epsilon`` of the true best at that confidence. ``margin``:
    what the best rival may gain on the leader, as a ratio >= 0, at that confidence.
    """

    leader: K
    probability: dict[K, float]
    ties: tuple[K, ...]
    close: tuple[K, ...]
    decided: bool
    margin: float
    epsilon: float
    confidence: float


def standings(
    measured: Measured[K],
    rng: np.random.Generator,
    *,
    epsilon: float = 0.01,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    timing_sd: float = 0.0,
    timed_together: Sequence[int] | None = None,
) -> Standings[K]:
    """Name the leader and say how sure that is: "best within epsilon at confidence".

    ``timing_sd``: spread of the measured log-times beside that of the prompts; candidates with
    the same number in ``timed_together`` share one measurement (settings of one draft do).

    The bound on the best rival is simultaneous over the rivals: of every resample the largest
    deviation is taken, so adding candidates widens it (Hsu 1981, multiple comparisons with the
    best, by bootstrap). Identical copies are always ties.
    """
    estimates = measured.ratios()
    lead = int(np.argmax(estimates))
    centre = np.log(np.maximum(estimates, 1e-300))
    gap = centre - centre[lead]  # <= 0: how far each rival is behind
    weights = _resampled_weights(measured, rng, resamples)
    together = range(len(gap)) if timed_together is None else timed_together
    groups = np.asarray(together, dtype=np.int64)

    def blocks() -> Iterator[tuple[Ints, Floats]]:
        return _blocks(measured, weights, copy.deepcopy(rng), timing_sd, groups)

    leading = next(logs[rows == lead][0] for rows, logs in blocks() if lead in rows)
    best = np.full(resamples, -np.inf)
    winner = np.zeros(resamples, dtype=np.int64)
    furthest = np.zeros(resamples)
    spread = np.zeros(len(gap))
    same = np.zeros(len(gap), dtype=np.bool_)
    for rows, logs in blocks():
        # Of equal ones the first wins, whatever the order of the blocks.
        place = np.argmax(logs, axis=0)
        top, whose = logs[place, np.arange(resamples)], rows[place]
        ahead = (top > best) | ((top == best) & (whose < winner))
        best, winner = np.where(ahead, top, best), np.where(ahead, whose, winner)
        same[rows] = np.isclose(logs, leading, rtol=0, atol=1e-12).all(axis=1)
        deviation = (logs - leading) - gap[rows, None]
        spread[rows] = np.std(deviation, axis=1)
        moving = (rows != lead) & (spread[rows] > 1e-12)
        if moving.any():
            scaled = np.abs(deviation[moving]) / spread[rows[moving], None]
            furthest = np.maximum(furthest, scaled.max(axis=0))

    wins = np.bincount(winner, minlength=len(gap)) / resamples
    if same.sum() > 1:  # the first of several copies would get all
        wins = np.where(same, wins[same].mean(), wins)
    rivals = (np.arange(len(gap)) != lead) & (spread > 1e-12)
    reach = np.zeros(len(gap))
    if rivals.any():
        # The quantile of a few hundred resamples errs to the low side as often as to the high,
        # and coverage loses more by the one than it gains by the other: aim a little higher.
        aim = 1.0 - 0.8 * (1.0 - confidence)
        critical = float(np.quantile(furthest, aim)) * _few(measured)
        reach[rivals] = critical * spread[rivals]
    upper = gap + reach
    alone = student_quantile(0.5 + confidence / 2, 10_000) * _few(measured) * spread
    others = np.delete(upper, lead)
    margin = max(0.0, float(np.expm1(others.max()))) if len(others) else 0.0
    ties = [i == lead or upper[i] >= 0.0 for i in range(len(gap))]
    close = [i == lead or (ties[i] and gap[i] + alone[i] >= 0.0) for i in range(len(gap))]
    return Standings(
        leader=measured.candidates[lead],
        probability={n: float(wins[i]) for i, n in enumerate(measured.candidates)},
        ties=tuple(n for n, tied in zip(measured.candidates, ties, strict=True) if tied),
        close=tuple(n for n, near in zip(measured.candidates, close, strict=True) if near),
        decided=margin <= epsilon,
        margin=margin,
        epsilon=epsilon,
        confidence=confidence,
    )


def _blocks(
    measured: Measured[Any],
    weights: Floats,
    rng: np.random.Generator,
    timing_sd: float,
    groups: Ints,
) -> Iterator[tuple[Ints, Floats]]:
    """(candidates, [those, resamples] log-totals with the noise of their timing), ``BLOCK`` at a
    time: thousands of candidates, each with all resamples, would fill the memory.

    A timing's noise is one row of normal draws, drawn in the order of ``groups``.
    """
    order = np.argsort(groups, kind="stable")
    drawn, noise = -1, np.zeros(len(weights))
    for first in range(0, len(order), BLOCK):
        rows = order[first : first + BLOCK]
        logs = np.log(np.maximum(_totals(measured, weights, rows), 1e-300))
        if timing_sd > 0:
            for place, group in enumerate(groups[rows]):
                while drawn < group:
                    noise = rng.normal(0.0, timing_sd, len(weights))
                    drawn += 1
                logs[place] += noise
        yield rows, logs


def _few(measured: Measured[Any]) -> float:
    """Widening for few prompts: Student's 97.5 % point over the normal one.

    Kish's effective number of prompts: unequal lengths and weights count for fewer.
    """
    share = measured.denominator.mean(axis=0) * measured.weight
    effective = share.sum() ** 2 / (share**2).sum()
    freedom = max(int(effective) - len(_strata(measured.stratum)), 2)
    return student_quantile(0.975, freedom) / 1.959964


def least_sign_flip_p_value(prompts: int, *, resamples: int = 100_000) -> float:
    """The smallest that :func:`sign_flip_p_value` can be: all differences of one sign."""
    return 2.0 ** (1 - prompts) if prompts <= EXACT_FLIPS else 1.0 / (resamples + 1)


def sign_flip_p_value(
    differences: Sequence[float] | Floats, rng: np.random.Generator, *, resamples: int = 100_000
) -> float:
    """Two-sided p-value that paired differences have mean zero, by flipping their signs.

    Exact (all 2^n flips) up to 16 prompts, by ``resamples`` random flips above (then counting
    the observed one, so never zero). For fewer than 30 prompts, instead of an interval.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0.0]
    n = len(values)
    if n == 0:
        return 1.0
    observed = abs(values.sum()) * (1.0 - 1e-12)
    if n <= EXACT_FLIPS:
        signs = 1 - 2 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ values) >= observed).mean())
    hits, done = 1, 1
    while done <= resamples:
        flips = rng.integers(0, 2, size=(min(10_000, resamples - done + 1), n)) * 2 - 1
        hits += int((np.abs(flips @ values) >= observed).sum())
        done += len(flips)
    return hits / done
