"""What changed between two nights of one series, paired by prompt, with its standard error.

Prompts are clusters (scoring.md section 3): every figure is a ratio of sums over prompts, both
nights are resampled by the same draw of prompts, and the spread of the *difference* is its
error. Where a drafted and an undrafted speed are divided, both come from the same night, so
that a machine that is a few per cent slower tonight cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cook.report.intervals import SEED
from cook.report.night import Column, Night
from cook.speculation.statistics import Measured, resampled_ratios, sign_flip_p_value

if TYPE_CHECKING:
    from cook.report.history import History

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
FEWEST_PROMPTS = 8
SMALL_SAMPLE = 30
RATIO_NOISE = 0.006
"""Least night-to-night spread of a speed ratio beyond what its requests show (1 = 100 %).

Drift within a night falls on the two sides of the ratio unequally, and no number of prompts
averages it out: replies of one configuration share their server and their minutes."""
SPEED_NOISE = 0.02
"""The same for an undivided speed: clocks and temperature move a whole night by 1-3 %."""
LEARNING_NIGHTS = 6
MOST_LEARNED = 4.0
"""A series noisier than this many times the least spread is a fault, not a noise to get used to."""


class Figure(StrEnum):
    """What is compared. ``sign`` is +1 where more is better."""

    ACCEPTANCE = "acceptance"
    SPEED = "speed ratio"
    CYCLE = "cycle cost"
    NO_DRAFT = "no-draft speed"

    @property
    def sign(self) -> int:
        return -1 if self is Figure.CYCLE else 1


@dataclass(frozen=True)
class Change:
    """``now`` against ``before``: a difference for acceptance, a log ratio for the others.

    ``error`` is its standard error, night-to-night noise included; ``freedom`` the degrees of
    freedom behind it. ``permutation`` is the two-sided sign-flip p-value, for few prompts only.
    """

    figure: Figure
    candidate: str
    before: float
    now: float
    change: float
    error: float
    freedom: int
    prompts: int
    permutation: float | None


@dataclass(frozen=True)
class Incomparable:
    """Why nothing of a figure can be said."""

    figure: Figure
    candidate: str
    reason: str


def changes(
    now: Night, before: Night, history: History | None = None
) -> tuple[list[Change], list[Incomparable]]:
    """Every figure that both nights have. ``history`` tells how noisy this series is."""
    refused = mismatch(now, before)
    if refused is not None:
        return [], [Incomparable(Figure.ACCEPTANCE, "every candidate", refused)]
    pair = _Pair.of(now, before)
    if len(pair.prompts) < FEWEST_PROMPTS:
        reason = f"{len(pair.prompts)} prompts in common; {FEWEST_PROMPTS} are needed"
        return [], [Incomparable(Figure.ACCEPTANCE, "every candidate", reason)]
    past = history.of(now) if history is not None else ()
    found: list[Change] = []
    refusals: list[Incomparable] = []
    disturbed = now.disturbed or before.disturbed
    for name in pair.names:
        wanted = [Figure.NO_DRAFT] if pair.plain[name] == name else [*Figure][:3]
        for figure in wanted:
            if figure is not Figure.ACCEPTANCE and disturbed:
                when = "tonight" if now.disturbed else "that night"
                reason = f"other programs disturbed the timings {when}"
                refusals.append(Incomparable(figure, name, reason))
            elif (change := pair.change(figure, name, past)) is not None:
                found.append(change)
    return found, refusals


def mismatch(now: Night, before: Night) -> str | None:
    """Why the two nights measure different things, or None."""
    for what, ours, theirs in (
        ("prompts", now.prompts_sha256, before.prompts_sha256),
        ("max_tokens", now.max_tokens, before.max_tokens),
        ("temperature", now.temperature, before.temperature),
        ("machine", now.machine, before.machine),
    ):
        if ours != theirs:
            return f"{what} differs: {theirs} then, {ours} now"
    return None


class _Pair:
    """The columns of two nights on the prompts that all common candidates ran in both."""

    def __init__(self, names: Sequence[str], prompts: Sequence[str], stratum: Sequence[int]):
        self.names = tuple(names)
        self.prompts = tuple(prompts)
        self.stratum = np.array(stratum, dtype=np.int64)
        self.sums: dict[tuple[str, str], Floats] = {}
        """(candidate, part) -> [2, prompts], now before then."""
        self.wall = False
        self.plain: dict[str, str | None] = {}
        """Candidate -> the same engine without a draft."""
        self._draws: dict[tuple[str, str, str], Floats] = {}

    @classmethod
    def of(cls, now: Night, before: Night) -> _Pair:
        names = [c.name for c in now.candidates if before.column(c.name) is not None]
        nights = (_columns(now, names), _columns(before, names))
        places = tuple({p: i for i, (p, _) in enumerate(n.prompts)} for n in (now, before))
        common = [
            (prompt, category)
            for prompt, category in now.prompts
            if prompt in places[1]
            and all(
                column.tokens[place[prompt]] is not None
                for columns, place in zip(nights, places, strict=True)
                for column in columns
            )
        ]
        categories = sorted({category for _, category in common})
        pair = cls(names, [p for p, _ in common], [categories.index(c) for _, c in common])
        pair.wall = now.maximize == "end_to_end_speed"
        for index, name in enumerate(names):
            plain = now.plain(nights[0][index].engine)
            pair.plain[name] = plain.name if plain is not None and plain.name in names else None
            for part in ("tokens", "decode_ms", "wall_ms", "drafted", "accepted"):
                rows = [
                    [getattr(columns[index], part)[place[p]] for p, _ in common]
                    for columns, place in zip(nights, places, strict=True)
                ]
                # A reply too short to draft for counts nothing; None stays out of the sums.
                pair.sums[name, part] = np.array(
                    [[0.0 if v is None else v for v in row] for row in rows], dtype=np.float64
                )
        return pair

    def change(self, figure: Figure, name: str, past: Sequence[Night]) -> Change | None:
        """The change of one figure, or None where a night does not have it."""
        terms = self._terms(figure, name)
        if terms is None:
            return None
        logs = figure is not Figure.ACCEPTANCE
        value = np.log if logs else np.asarray
        # [term, night, resample]; a term is a ratio of sums, terms multiply (log) with a sign.
        estimate, spread = np.zeros(2), np.zeros((2, RESAMPLES))
        for sign, top, bottom in terms:
            measured = self._measured(top, bottom)
            estimate += sign * value(measured.ratios())
            spread += sign * value(self._resampled(top, bottom, measured))
        change = float(estimate[0] - estimate[1])
        sampling = float(np.std(spread[0] - spread[1]))
        noise = _noise(figure, name, self.plain[name], past, self.wall)
        error = math.sqrt(sampling**2 + 2 * noise**2)
        now, before = (np.exp(estimate) if logs else estimate).tolist()
        shares = np.zeros(len(self.prompts))
        for sign, top, bottom in terms:
            shares += sign * _shares(self.sums[top], self.sums[bottom], logs)
        permutation = None
        if len(self.prompts) < SMALL_SAMPLE:
            rng = np.random.default_rng(SEED)
            permutation = sign_flip_p_value(shares, rng, resamples=20_000)
        return Change(
            figure=figure,
            candidate=name,
            before=before,
            now=now,
            change=change,
            error=error,
            freedom=min(
                _freedom(shares), max(len(self.prompts) - len(set(self.stratum.tolist())), 2)
            ),
            prompts=len(self.prompts),
            permutation=permutation,
        )

    def _terms(self, figure: Figure, name: str) -> list[tuple[int, Part, Part]] | None:
        time = "wall_ms" if self.wall else "decode_ms"
        mine = (name, "tokens"), (name, time)
        if figure is Figure.NO_DRAFT:
            return [(1, *mine)] if self._positive(*mine) else None
        if figure is Figure.ACCEPTANCE:
            counts = (name, "accepted"), (name, "drafted")
            return [(1, *counts)] if self._positive(counts[1]) else None
        undrafted = self.plain[name]
        if undrafted is None:
            return None
        plain = (undrafted, "tokens"), (undrafted, time)
        if figure is Figure.SPEED:
            return [(1, *mine), (-1, *plain)] if self._positive(*mine, *plain) else None
        self._cycles(name)
        cycle = (name, "decode_ms"), (name, "cycles")
        token = (undrafted, "decode_ms"), (undrafted, "tokens")
        drafting = self._positive((name, "drafted"), *cycle, *token)
        return [(1, *cycle), (-1, *token)] if drafting else None

    def _cycles(self, name: str) -> None:
        """Verification cycles, by token identity: tokens after the first = accepted + cycles."""
        if (name, "cycles") not in self.sums:
            found = self.sums[name, "tokens"] - self.sums[name, "accepted"]
            self.sums[name, "cycles"] = np.maximum(found, 0.0)

    def _positive(self, *parts: Part) -> bool:
        return all((self.sums[p].sum(axis=1) > 0).all() for p in parts if p in self.sums) and all(
            p in self.sums for p in parts
        )

    def _measured(self, top: Part, bottom: Part) -> Measured:
        numerator, denominator = self.sums[top], self.sums[bottom]
        weight = np.ones(len(self.prompts))
        return Measured(("now", "before"), numerator, denominator, self.stratum, weight)

    def _resampled(self, top: Part, bottom: Part, measured: Measured) -> Floats:
        """[2, resamples]; the same seed gives every ratio the same draws of prompts."""
        key = (top[0], top[1], bottom[1])
        if key not in self._draws:
            found = resampled_ratios(measured, np.random.default_rng(SEED), RESAMPLES)
            self._draws[key] = np.maximum(found, 1e-12)
        return self._draws[key]


Part = tuple[str, str]
"""(candidate, column)."""


def _columns(night: Night, names: Sequence[str]) -> list[Column]:
    found = [night.column(name) for name in names]
    return [column for column in found if column is not None]


def _shares(top: Floats, bottom: Floats, logs: bool) -> Floats:
    """What each prompt adds to the change, to first order; they sum to about the change.

    Around the figure of both nights together, so that without a change their mean is zero.
    """
    total = bottom.sum()
    rate = top.sum() / total
    residual = (top - rate * bottom) / (bottom.sum(axis=1, keepdims=True))
    if logs:
        residual = residual / rate
    return np.asarray(residual[0] - residual[1])


def _freedom(shares: Floats) -> int:
    """Degrees of freedom of their spread: 2n / (kurtosis - 1), n for normal shares.

    Few where few prompts carry the change, as when a new build rewords one reply in ten.
    """
    fourth = float((shares**4).sum())
    if fourth == 0.0:
        return len(shares)
    kurtosis = len(shares) * fourth / float((shares**2).sum()) ** 2
    return max(2, int(2 * len(shares) / max(kurtosis - 1.0, 1.0)))


def _noise(
    figure: Figure, name: str, plain: str | None, past: Sequence[Night], wall: bool
) -> float:
    """Spread of one night of this series beyond its prompts: the least assumed, or more if seen.

    From differences of successive nights by their median, so that a few real changes of the
    engine do not pass for noise.
    """
    if figure is Figure.ACCEPTANCE:
        return 0.0
    least = SPEED_NOISE if figure is Figure.NO_DRAFT else RATIO_NOISE
    values = [
        v
        for n in past
        if not n.disturbed and (v := _log_value(n, figure, name, plain, wall)) is not None
    ]
    if len(values) < LEARNING_NIGHTS:
        return least
    steps = sorted(abs(b - a) for a, b in pairwise(values))
    seen = 1.4826 * steps[len(steps) // 2] / math.sqrt(2)
    return min(max(least, seen), MOST_LEARNED * least)


def _log_value(
    night: Night, figure: Figure, name: str, plain: str | None, wall: bool
) -> float | None:
    base, mine = night.column(plain or ""), night.column(name)
    if base is None or mine is None:
        return None
    time = "decode_ms" if figure is Figure.CYCLE or not wall else "wall_ms"
    per_token = _total(getattr(base, time)) / max(_total(base.tokens), 1.0)
    if per_token <= 0:
        return None
    if figure is Figure.NO_DRAFT:
        return -math.log(per_token)
    count = _total(mine.tokens) - (_total(mine.accepted) if figure is Figure.CYCLE else 0.0)
    cost = _total(getattr(mine, time)) / max(count, 1.0)
    return math.log(cost / per_token) if cost > 0 else None


def _total(values: Sequence[float | int | None]) -> float:
    return float(sum(v for v in values if v is not None))
