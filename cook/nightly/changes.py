"""What changed between two nights of one series, paired by prompt, with its standard error.

Prompts are clusters (docs/internals/scoring.md#statistics): every figure is a ratio of sums over
prompts, both nights are resampled by the same draw of prompts, and the spread of the *difference*
is its error. Where a drafted and an undrafted speed are divided, both come from the same night, so
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

from cook.formats.arrays import Floats
from cook.nightly.night import CandidateNight, Night, ReplayNight
from cook.record.objective import Objective
from cook.scoring.intervals import SEED
from cook.scoring.racing import student_upper
from cook.scoring.statistics import (
    Measured,
    least_sign_flip_p_value,
    resampled_ratios,
    sign_flip_p_value,
)

if TYPE_CHECKING:
    from cook.nightly.history import History


RESAMPLES = 1000
FLIPS = 20_000
MOST_FLIPS = 400_000
FEWEST_PROMPTS = 10
"""Nine that all agree have one chance in 512, more than a gate among others may spend."""
SMALL_SAMPLE = 30
RATIO_NOISE = 0.006
"""Least night-to-night spread of a speed ratio beyond what its requests show (1 = 100 %).

Drift within a night falls on the two sides of the ratio unequally, and no number of prompts
averages it out: replies of one configuration share their server and their minutes."""
SPEED_NOISE = 0.02
"""The same for an undivided speed: clocks and temperature move a whole night by 1-3 %."""
LEARNING_NIGHTS = 10
MOST_NIGHTS = 40
"""Nights learned from: machines change."""
MOST_LEARNED = 4.0
"""A series noisier than this many times the least spread is a fault, not a noise to get used to."""


class GatedFigure(StrEnum):
    """What is compared. ``sign`` is +1 where more is better."""

    ACCEPTANCE = "acceptance"
    REPLAYED = "replayed acceptance"
    SPEED = "speed ratio"
    CYCLE = "cycle cost"
    NO_DRAFT = "no-draft speed"

    @property
    def sign(self) -> int:
        return -1 if self is GatedFigure.CYCLE else 1

    @property
    def in_points(self) -> bool:
        """Whether it is a share, whose change is a difference; speeds change by a ratio."""
        return self in (GatedFigure.ACCEPTANCE, GatedFigure.REPLAYED)


LIVE_FIGURES = (GatedFigure.ACCEPTANCE, GatedFigure.SPEED, GatedFigure.CYCLE)
"""Of a draft that ran live both nights."""


@dataclass(frozen=True)
class Change:
    """``now`` against ``before``: a difference for acceptance, a log ratio for the others.

    ``error`` is its standard error, night-to-night noise included; ``freedom`` the degrees of
    freedom behind it. ``shares`` are what each prompt adds to the change. ``draft`` is the quant
    that it is of, None for no draft. ``identical``: every count behind it is what it was.
    """

    figure: GatedFigure
    candidate: str
    before: float
    now: float
    change: float
    error: float
    freedom: int
    shares: tuple[float, ...]
    draft: str | None
    identical: bool = False

    @property
    def prompts(self) -> int:
        return len(self.shares)

    def p_value(self, level: float) -> float:
        """One-sided; under :data:`SMALL_SAMPLE` prompts a sign-flip permutation must agree."""
        better = abs(self.change)
        if not self.error:
            return 0.0 if better else 0.5
        found = student_upper(better / self.error, self.freedom)
        if self.prompts >= SMALL_SAMPLE or found > level:
            return found
        rng = np.random.default_rng(SEED)
        flipped = sign_flip_p_value(np.array(self.shares), rng, resamples=_flips(level))
        return max(found, flipped / 2)

    def fires(self, level: float) -> bool:
        """Whether so many prompts could show any change, however large, at ``level``."""
        return _fire(self.prompts, level)

    def prompts_needed(self, level: float) -> int:
        """The fewest prompts that could show a change at ``level``."""
        return next(n for n in range(FEWEST_PROMPTS, SMALL_SAMPLE + 1) if _fire(n, level))


@dataclass(frozen=True)
class Incomparable:
    """Why nothing of a figure can be said."""

    figure: GatedFigure
    candidate: str
    reason: str


def changes(
    now: Night, before: Night, history: History | None = None
) -> tuple[list[Change], list[Incomparable]]:
    """Every figure that both nights have. ``history`` tells how noisy this series is."""
    refused = mismatch(now, before)
    if refused is not None:
        return [], [Incomparable(GatedFigure.ACCEPTANCE, "every candidate", refused)]
    found, refusals = _replayed(now, before)
    live, unlived = _live(now, before, history)
    return [*found, *live], [*refusals, *unlived]


def _replayed(now: Night, before: Night) -> tuple[list[Change], list[Incomparable]]:
    """Every draft's replayed acceptance, each on the prompts that it has both nights."""
    found: list[Change] = []
    refusals: list[Incomparable] = []
    for theirs in before.replays:
        name, mine = before.replay_name(theirs), now.replay(theirs.key)
        reason = None
        if mine is None:
            reason = "not replayed tonight"
        elif mine.n_max != theirs.n_max:
            reason = f"replayed at n_max={theirs.n_max} then, {mine.n_max} now"
        else:
            pair = _Pair.of_replays(name, (now, mine), (before, theirs))
            reason = _too_few(pair)
            terms = pair.terms(GatedFigure.REPLAYED, name)
            if reason is None and terms is None:
                reason = "a night without a drafted token"
            elif reason is None and terms is not None:
                pair.resample([ratio for _, ratio in terms])
                found.append(pair.change(GatedFigure.REPLAYED, name, terms, 0.0))
        if reason is not None:
            refusals.append(Incomparable(GatedFigure.REPLAYED, name, reason))
    return found, refusals


def _too_few(pair: _Pair) -> str | None:
    if len(pair.prompts) >= FEWEST_PROMPTS:
        return None
    return f"{len(pair.prompts)} prompts in common; {FEWEST_PROMPTS} are needed"


def _live(
    now: Night, before: Night, history: History | None
) -> tuple[list[Change], list[Incomparable]]:
    """What the servers of both nights counted and timed."""
    pair = _Pair.of(now, before)
    if (reason := _too_few(pair)) is not None:
        return [], [Incomparable(GatedFigure.ACCEPTANCE, "every candidate", reason)]
    past = history.of(now) if history is not None else ()
    wanted_terms: list[tuple[GatedFigure, str, Terms]] = []
    refusals: list[Incomparable] = []
    disturbed = now.disturbed or before.disturbed
    for name in pair.names:
        wanted = [GatedFigure.NO_DRAFT] if pair.plain[name] == name else LIVE_FIGURES
        for figure in wanted:
            if figure is not GatedFigure.ACCEPTANCE and disturbed:
                when = "tonight" if now.disturbed else "that night"
                reason = f"other programs disturbed the timings {when}"
                refusals.append(Incomparable(figure, name, reason))
            elif (terms := pair.terms(figure, name)) is not None:
                wanted_terms.append((figure, name, terms))
    pair.resample([ratio for _, _, terms in wanted_terms for _, ratio in terms])
    ratio, speed = _noise(past, plain=False), _noise(past, plain=True)
    noise = {
        GatedFigure.ACCEPTANCE: 0.0,
        GatedFigure.SPEED: ratio,
        GatedFigure.CYCLE: ratio,
        GatedFigure.NO_DRAFT: speed,
    }
    found = [pair.change(fig, name, terms, noise[fig]) for fig, name, terms in wanted_terms]
    return found, refusals


def _flips(level: float) -> int:
    """Sign flips that can show a p-value of ``level`` with several hits to spare."""
    return int(min(max(4 / level, FLIPS), MOST_FLIPS)) if level else MOST_FLIPS


def _fire(prompts: int, level: float) -> bool:
    if prompts >= SMALL_SAMPLE:
        return True  # no permutation has a say
    return least_sign_flip_p_value(prompts, resamples=_flips(level)) / 2 <= level


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
        self.speed = Objective.DECODE_SPEED.columns
        """Columns of the speed that the recipe maximizes, decoding's where it maximizes none."""
        self.plain: dict[str, str | None] = {}
        """Candidate -> the same engine without a draft."""
        self.draft: dict[str, str | None] = {}
        """Candidate -> its quant."""
        self._ratios: dict[Ratio, tuple[Floats, Floats]] = {}

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
        end_to_end = now.maximize == Objective.END_TO_END_SPEED
        pair.speed = (Objective.END_TO_END_SPEED if end_to_end else Objective.DECODE_SPEED).columns
        for index, name in enumerate(names):
            pair.draft[name] = nights[0][index].draft
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

    @classmethod
    def of_replays(
        cls, name: str, now: tuple[Night, ReplayNight], before: tuple[Night, ReplayNight]
    ) -> _Pair:
        """One draft's replays, on the prompts that it was replayed on both nights."""
        counts = tuple(
            {
                prompt: (category, drafted, accepted)
                for (prompt, category), drafted, accepted in zip(
                    night.prompts, replay.drafted, replay.accepted, strict=True
                )
                if drafted is not None and accepted is not None
            }
            for night, replay in (now, before)
        )
        common = [prompt for prompt in counts[0] if prompt in counts[1]]
        categories = [counts[0][prompt][0] for prompt in common]
        order = sorted(set(categories))
        pair = cls([name], common, [order.index(c) for c in categories])
        pair.draft[name] = now[1].draft
        for place, part in enumerate(Objective.ACCEPTANCE.columns[::-1], start=1):
            rows = [[night[prompt][place] for prompt in common] for night in counts]
            pair.sums[name, part] = np.array(rows, dtype=np.float64)
        return pair

    def resample(self, ratios: Sequence[Ratio]) -> None:
        """Draw prompts once for all ``ratios`` together: what they share cancels between them."""
        rows = list(dict.fromkeys(ratios))
        if not rows:
            return
        measured = Measured(
            tuple(f"{r} {night}" for r in rows for night in ("now", "before")),
            np.concatenate([self.sums[top] for top, _ in rows]),
            np.concatenate([self.sums[bottom] for _, bottom in rows]),
            self.stratum,
            np.ones(len(self.prompts)),
        )
        drawn = resampled_ratios(measured, np.random.default_rng(SEED), RESAMPLES)
        totals = measured.ratios()
        for index, row in enumerate(rows):
            place = slice(2 * index, 2 * index + 2)
            # A resample without a single hit has no logarithm.
            self._ratios[row] = totals[place], np.maximum(drawn[place], 1e-12)

    def change(self, figure: GatedFigure, name: str, terms: Terms, noise: float) -> Change:
        """The change of one figure, after :meth:`resample`; ``noise`` is a night's own spread."""
        logs = not figure.in_points
        value = np.log if logs else np.asarray
        # [night] and [night, resample]; terms multiply, so their logarithms add, by sign.
        estimate, spread = np.zeros(2), np.zeros((2, RESAMPLES))
        shares = np.zeros(len(self.prompts))
        for sign, ratio in terms:
            totals, drawn = self._ratios[ratio]
            estimate += sign * value(totals)
            spread += sign * value(drawn)
            shares += sign * _shares(self.sums[ratio[0]], self.sums[ratio[1]], logs)
        change = float(estimate[0] - estimate[1])
        sampling = float(np.std(spread[0] - spread[1]))
        error = math.sqrt(sampling**2 + 2 * noise**2)
        now, before = (np.exp(estimate) if logs else estimate).tolist()
        parts = [part for _, ratio in terms for part in ratio]
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
            shares=tuple(shares.tolist()),
            draft=self.draft[name],
            identical=all(np.array_equal(*self.sums[part]) for part in parts),
        )

    def terms(self, figure: GatedFigure, name: str) -> Terms | None:
        """What the figure is made of, or None where a night does not have it."""
        mine = _ratio(name, self.speed)
        if figure is GatedFigure.NO_DRAFT:
            return [(1, mine)] if self._positive(*mine) else None
        if figure.in_points:
            counts = _ratio(name, Objective.ACCEPTANCE.columns)
            return [(1, counts)] if self._positive(counts[1]) else None
        undrafted = self.plain[name]
        if undrafted is None:
            return None
        plain = _ratio(undrafted, self.speed)
        if figure is GatedFigure.SPEED:
            return [(1, mine), (-1, plain)] if self._positive(*mine, *plain) else None
        self._cycles(name)
        cycle = (name, "decode_ms"), (name, "cycles")
        token = (undrafted, "decode_ms"), (undrafted, "tokens")
        drafting = self._positive((name, "drafted"), *cycle, *token)
        return [(1, cycle), (-1, token)] if drafting else None

    def _cycles(self, name: str) -> None:
        """Verification cycles, by token identity: tokens after the first = accepted + cycles."""
        if (name, "cycles") not in self.sums:
            found = self.sums[name, "tokens"] - self.sums[name, "accepted"]
            self.sums[name, "cycles"] = np.maximum(found, 0.0)

    def _positive(self, *parts: CandidateColumn) -> bool:
        return all((self.sums[part].sum(axis=1) > 0).all() for part in parts)


CandidateColumn = tuple[str, str]
"""(candidate, column)."""
Ratio = tuple[CandidateColumn, CandidateColumn]
"""Sum of one column over sum of another."""
Terms = list[tuple[int, Ratio]]
"""Ratios and whether each multiplies (1) or divides (-1)."""


def _ratio(candidate: str, columns: tuple[str, str]) -> Ratio:
    return (candidate, columns[0]), (candidate, columns[1])


def _columns(night: Night, names: Sequence[str]) -> list[CandidateNight]:
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


def _noise(past: Sequence[Night], *, plain: bool) -> float:
    """Spread of one night of this series beyond its prompts: the least assumed, or more if seen.

    From differences of successive nights by their median, so that a few real changes of the
    engine do not pass for noise. ``plain`` is for speeds without a draft. Ratios learn from the
    time of a cycle, which does not depend on what the replies say: a new build that rewords them
    is no noise of the clock.
    """
    least = SPEED_NOISE if plain else RATIO_NOISE
    nights = [night for night in past if not night.disturbed][-MOST_NIGHTS:]
    if len(nights) < LEARNING_NIGHTS:
        return least
    names = dict.fromkeys(
        c.name for n in nights for c in n.candidates if (c.draft is None) == plain
    )
    steps: list[float] = []
    for name in names:
        values = [v for n in nights if (v := _log_time(n, name)) is not None]
        steps += (abs(after - before) for before, after in pairwise(values))
    if not steps:
        return least
    seen = 1.4826 * float(np.median(steps)) / math.sqrt(2)
    return min(max(least, seen), MOST_LEARNED * least)


def _log_time(night: Night, name: str) -> float | None:
    """Of a draft, time of a cycle over that of an undrafted token; without one, of a token."""
    mine = night.column(name)
    plain = night.plain(mine.engine) if mine is not None else None
    if mine is None or plain is None:
        return None
    token = _total(plain.decode_ms) / max(_total(plain.tokens), 1.0)
    cycles = _total(mine.tokens) - _total(mine.accepted)
    cost = _total(mine.decode_ms) / max(cycles, 1.0)
    if token <= 0 or cost <= 0:
        return None
    return math.log(token) if mine.draft is None else math.log(cost / token)


def _total(values: Sequence[float | int | None]) -> float:
    return float(sum(v for v in values if v is not None))
