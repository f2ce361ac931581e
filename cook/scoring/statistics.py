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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats, Ints
from cook.record.measured import Interval
from cook.scoring.noise import LogSpread
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
    """Interval of candidate ``a``'s total over candidate ``b``'s: 1.05 is 5 % better.

    For figures that are exact once the prompts are given, as counts and forecasts are.
    """
    totals = resampled_ratios(measured, rng, resamples)
    ratios = measured.ratios()
    deviations = np.log(totals[a] / totals[b]) - np.log(ratios[a] / ratios[b])
    return interval_of(
        float(ratios[a] / ratios[b]), deviations * few(measured, confidence), confidence
    )


def interval_of(ratio: float, deviations: Floats, confidence: float) -> Interval:
    """About ``ratio``, whose logarithm is off by one of ``deviations``."""
    tail = (1.0 - confidence) / 2.0
    low, high = ratio * np.exp(np.quantile(deviations, [tail, 1.0 - tail]))
    return Interval(float(low), float(high), confidence, METHOD)


@dataclass(frozen=True)
class ErrorTerm:
    """An error of log-figures beside that of the prompts, one for all candidates of a group.

    ``group`` [candidates]: the same number shares one error, -1 has none. Settings of one draft
    share its timing; all drafts share what the overheads are off by, and no draft has none of it.
    """

    spread: LogSpread
    group: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Contrasts(Generic[K]):
    """What live runs say of ``candidates`` beside each other: log-figures whose common part says
    nothing (the machine drifts, a forecast is off for all alike).

    ``logs`` [candidates]; ``errors`` [candidates, RESAMPLES] draws of what these are off by.
    """

    candidates: tuple[K, ...]
    logs: Floats
    errors: Floats


@dataclass(frozen=True)
class Standings(Generic[K]):
    """Who is best. ``value``: log of each one's expected figure, by all that was measured.

    ``probability`` of each candidate being the best (they sum to 1); ``within``: of being at most
    ``epsilon`` worse than the best. ``ties``: candidates that cannot be told from the leader
    (leader included): the true best is among them at the confidence asked for. ``equivalent``:
    those shown to be at most ``epsilon`` worse than the leader (leader included), their whole
    interval. ``margin``: what the best rival may gain on the leader, as a ratio >= 0, at that
    confidence; ``decided`` when that is at most ``epsilon``.
    """

    leader: K
    value: dict[K, float]
    probability: dict[K, float]
    within: dict[K, float]
    ties: tuple[K, ...]
    equivalent: tuple[K, ...]
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
    errors: Sequence[ErrorTerm] = (),
    live: Contrasts[K] | None = None,
) -> Standings[K]:
    """Name the leader and say how sure that is: "best within epsilon at confidence".

    Every resample of the prompts, with a draw of every one of ``errors``, is one guess of how
    good the candidates are. ``live`` corrects the guesses of all candidates by as much as its
    contrasts differ from them (conditioning by kriging, Matheron's rule), so that what was seen of
    one candidate says something of all that share its errors.

    The bounds are simultaneous over the rivals: of every resample the largest deviation is taken,
    so adding candidates widens them (Hsu 1981, multiple comparisons with the best, by bootstrap).
    Identical copies are always ties.
    """
    guesses = _Guesses.of(measured, rng, resamples, few(measured, confidence), errors, live)
    centre = guesses.centre
    count = len(centre)
    lead = int(np.argmax(centre))
    gap = centre - centre[lead]  # <= 0: how far each rival is behind
    leading = guesses.of_rows(np.array([lead]))[0]
    best = np.full(resamples, -np.inf)
    winner = np.zeros(resamples, dtype=np.int64)
    furthest = np.zeros(resamples)
    spread = np.zeros(count)
    same = np.zeros(count, dtype=np.bool_)
    for rows in _blocks(count):
        logs = guesses.of_rows(rows)
        # Of equal ones the first wins.
        place = np.argmax(logs, axis=0)
        top = logs[place, np.arange(resamples)]
        ahead = top > best
        best, winner = np.where(ahead, top, best), np.where(ahead, rows[place], winner)
        same[rows] = np.isclose(logs, leading, rtol=0, atol=1e-12).all(axis=1)
        deviation = (logs - leading) - gap[rows, None]
        spread[rows] = np.std(deviation, axis=1)
        moving = (rows != lead) & (spread[rows] > 1e-12)
        if moving.any():
            scaled = np.abs(deviation[moving]) / spread[rows[moving], None]
            furthest = np.maximum(furthest, scaled.max(axis=0))

    near = best - np.log1p(epsilon)
    within = np.zeros(count)
    for rows in _blocks(count):
        within[rows] = (guesses.of_rows(rows) >= near).mean(axis=1)
    wins = np.bincount(winner, minlength=count) / resamples
    if same.sum() > 1:  # the first of several copies would get all
        wins = np.where(same, wins[same].mean(), wins)
    rivals = (np.arange(count) != lead) & (spread > 1e-12)
    reach = np.zeros(count)
    if rivals.any():
        # The quantile of a few hundred resamples errs to the low side as often as to the high,
        # and coverage loses more by the one than it gains by the other: aim a little higher.
        aim = 1.0 - 0.8 * (1.0 - confidence)
        reach[rivals] = float(np.quantile(furthest, aim)) * spread[rivals]
    upper, lower = gap + reach, gap - reach
    others = np.delete(upper, lead)
    margin = max(0.0, float(np.expm1(others.max()))) if len(others) else 0.0
    tied = (np.arange(count) == lead) | (upper >= 0.0)
    as_good = (np.arange(count) == lead) | (lower >= np.log1p(-epsilon) - 1e-12)
    names = measured.candidates
    return Standings(
        leader=names[lead],
        value={n: float(centre[i]) for i, n in enumerate(names)},
        probability={n: float(wins[i]) for i, n in enumerate(names)},
        within={n: float(within[i]) for i, n in enumerate(names)},
        ties=tuple(n for n, one in zip(names, tied, strict=True) if one),
        equivalent=tuple(n for n, one in zip(names, as_good, strict=True) if one),
        decided=margin <= epsilon,
        margin=margin,
        epsilon=epsilon,
        confidence=confidence,
    )


@dataclass(frozen=True, eq=False)
class _Guesses:
    """Resamples of the log-figures of all candidates, a few candidates at a time: thousands of
    them, each with all resamples, would fill the memory.

    ``contrasts`` [live candidates - 1, resamples]: guesses of what live runs told;
    ``innovation``, of the same shape: how far off each is, times the inverse of its covariance.
    """

    measured: Measured[Any]
    weights: Floats
    widening: float
    errors: tuple[_Drawn, ...]
    centre: Floats
    contrasts: Floats
    innovation: Floats

    @classmethod
    def of(
        cls,
        measured: Measured[K],
        rng: np.random.Generator,
        resamples: int,
        widening: float,
        errors: Sequence[ErrorTerm],
        live: Contrasts[K] | None,
    ) -> _Guesses:
        weights = _resampled_weights(measured, rng, resamples)
        drawn = tuple(
            _Drawn(np.array(e.group), e.spread.scale(rng, resamples), int(rng.integers(1 << 62)))
            for e in errors
            if e.spread.sd > 0
        )
        centre = np.log(np.maximum(measured.ratios(), 1e-300))
        nothing = np.zeros((0, resamples))
        prior = cls(measured, weights, widening, drawn, centre, nothing, nothing)
        if live is None or len(live.candidates) < 2:
            return prior
        seen = np.array([measured.candidates.index(key) for key in live.candidates])
        logs = prior.of_rows(seen)
        contrasts = logs[1:] - logs[0]
        expected = centre[seen[1:]] - centre[seen[0]]
        observed = live.logs[1:] - live.logs[0]
        off = (live.errors[1:] - live.errors[0])[:, :resamples]
        covariance = np.atleast_2d(np.cov(contrasts)) + np.atleast_2d(np.cov(off))
        inverse = np.linalg.pinv(covariance, hermitian=True)
        innovation = inverse @ (observed[:, None] - off - contrasts)
        shift = inverse @ (observed - expected)
        moved = centre.copy()
        for rows in _blocks(len(centre)):
            moved[rows] += _covariance(prior.of_rows(rows), contrasts) @ shift
        return cls(measured, weights, widening, drawn, moved, contrasts, innovation)

    def of_rows(self, rows: Ints) -> Floats:
        """[rows, resamples] log-figures."""
        logs = np.log(np.maximum(_totals(self.measured, self.weights, rows), 1e-300))
        told = np.log(np.maximum(self.measured.ratios()[rows, None], 1e-300))
        logs = told + self.widening * (logs - told)
        for error in self.errors:
            error.add(logs, rows)
        if len(self.contrasts):
            logs = logs + _covariance(logs, self.contrasts) @ self.innovation
        return logs


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Draws of an error term: those of a group by a generator of its own, so that they are the
    same whenever they are asked for. ``scale`` [resamples]."""

    group: Ints
    scale: Floats
    seed: int

    def add(self, logs: Floats, rows: Ints) -> None:
        """To ``logs`` [rows, resamples]."""
        for group in np.unique(self.group[rows]):
            if group >= 0:
                rng = np.random.default_rng([self.seed, group])
                logs[self.group[rows] == group] += self.scale * rng.normal(size=len(self.scale))


def _covariance(one: Floats, other: Floats) -> Floats:
    """[one, other] of two sets of rows over the same resamples."""
    centred = other - other.mean(axis=1, keepdims=True)
    return np.asarray(
        (one - one.mean(axis=1, keepdims=True)) @ centred.T / max(one.shape[1] - 1, 1)
    )


def _blocks(count: int) -> Iterator[Ints]:
    """The numbers below ``count``, :data:`BLOCK` at a time."""
    for first in range(0, count, BLOCK):
        yield np.arange(first, min(first + BLOCK, count))


def few(measured: Measured[Any], confidence: float) -> float:
    """Widening for few prompts: Student's quantile over the normal one, at ``confidence``.

    Kish's effective number of prompts: unequal lengths and weights count for fewer.
    """
    share = measured.denominator.mean(axis=0) * measured.weight
    effective = share.sum() ** 2 / (share**2).sum()
    freedom = max(int(effective) - len(_strata(measured.stratum)), 2)
    quantile = 0.5 + confidence / 2
    return student_quantile(quantile, freedom) / NormalDist().inv_cdf(quantile)


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
