"""Simulated nights whose finalists change: many drafts, close to each other, two of which go live.

Every draft is replayed every night (those far behind not on all prompts: they leave the race).
The two that are predicted fastest, by times that err, run live on half of the prompts, and so
does the last good night's pick. Texts, hits and noise are those of :mod:`tests.nightly.nights`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import field as default
from pathlib import Path
from typing import Any

import numpy as np

from cook.nightly.gates import Judgement, Policy, judge
from cook.nightly.history import History
from cook.nightly.night import CandidateNight, Night, ReplayNight
from tests.nightly.nights import CATEGORIES, Array, Series, World, _sigmoid, walk, worsened

LENGTH = 4
RACE_FROM = 8
NEIGHBOURS = 0.006
"""Speeds of drafts next to each other in rank differ by this share: the best few change places."""
PREDICTION_NOISE = 0.012


@dataclass
class Field(Series):
    """One recipe with ``drafts`` drafts on one machine, night after night."""

    drafts: int = 8
    finalists: tuple[str, ...] = ()
    """Those predicted best on the last night that was measured."""
    cost: dict[str, float] = default(default_factory=dict)

    def __post_init__(self) -> None:
        self.lengths = ()
        super().__post_init__()
        text = self._difficulty()
        ease = np.linspace(-0.7, 0.2, self.drafts)
        for number in range(self.drafts):
            own = self.rng.random(text.shape)
            chance = _sigmoid(self.ease[:, None] + ease[number] + text)
            self.hits[f"Q{number}"] = own < chance
        order = self.rng.permutation(self.drafts)
        for name, rank in zip(self.hits, order, strict=True):
            accepted, _ = self._walked(name, LENGTH)
            tokens = self.world.tokens - 1
            steps = 1 - accepted.sum() / (tokens * len(accepted))
            # A cycle's time over a token's, such that ranks are NEIGHBOURS apart.
            self.cost[name] = 1.0 / (steps * 1.5 * (1 - NEIGHBOURS) ** int(rank))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.hits)

    def _walked(self, name: str, length: int) -> tuple[Array, Array]:
        """All drafts at once: a walk takes as long over many rows as over few."""
        if (self.build, name) not in self._counts:
            every = walk(np.concatenate(list(self.hits.values())), length)
            split = (np.split(part, len(self.hits)) for part in every)
            for draft, *counts in zip(self.hits, *split, strict=True):
                self._counts[self.build, draft] = (counts[0], counts[1])
        return self._counts[self.build, name]

    def field_night(self, again: str | None, lost: dict[str, float] | None = None) -> Night:
        """One night; ``lost``: points of acceptance that drafts lose tonight."""
        world, rng, n = self.world, self.rng, self.world.prompts
        self.night += 1
        pace = np.exp(rng.normal(0.0, world.night_noise))
        counts: dict[str, tuple[Array, Array]] = {}
        for name in self.names:
            points = (lost or {}).get(name, 0.0)
            if points:
                counts[name] = walk(worsened(self.hits[name], LENGTH, points / 100, rng), LENGTH)
            else:
                counts[name] = self._walked(name, LENGTH)
        tokens = np.full(n, world.tokens - 1)
        picking = self._picking()
        seconds = {d: (tokens - a) * self.cost[d] for d, (a, _) in counts.items()}
        predicted = {
            d: tokens[picking].sum() / s[picking].sum() * np.exp(rng.normal(0, PREDICTION_NOISE))
            for d, s in seconds.items()
        }
        ranking = sorted(predicted, key=lambda d: -predicted[d])
        self.finalists = tuple(ranking[:2])
        live = dict.fromkeys([*ranking[:1], *([again] if again else []), *ranking[1:2]])
        columns = [self._half("no draft", None, tokens, tokens * 10.0 * pace, None, None)]
        for d in live:
            accepted, drafted = counts[d]
            ms = seconds[d] * 10.0 * pace
            columns.append(self._half(d, d, tokens, ms, drafted, accepted))
        speed = {
            c.name: sum(t for t in c.tokens if t) / sum(ms for ms in c.decode_ms if ms)
            for c in columns[1:]
        }
        best = predicted[ranking[0]]
        replays = []
        for d, (accepted, drafted) in counts.items():
            gone = self.drafts >= RACE_FROM and predicted[d] < 0.95 * best
            seen = picking if gone else np.ones(n, dtype=bool)
            replays.append(ReplayNight(d, None, LENGTH, _cut(drafted, seen), _cut(accepted, seen)))
        quality = [self._draft(d, index) for index, d in enumerate(self.names)]
        pick = max(speed, key=lambda name: speed[name])
        return self._night(pick, columns, quality, replays)

    def _picking(self) -> Array:
        """The half that is chosen on, with its share of each category and each server start."""
        number = np.arange(self.world.prompts)
        return np.asarray((number + number // CATEGORIES) % 2 == 0)

    def _half(
        self, name: str, draft: str | None, tokens: Array, ms: Array, *counts: Array | None
    ) -> CandidateNight:
        """Live on the half of the prompts that figures are reported on."""
        column = self._column(name, draft, tokens, ms, *counts)
        seen = ~self._picking()
        parts = ("tokens", "decode_ms", "wall_ms", "drafted", "accepted")
        cut: dict[str, Any] = {part: _cut(getattr(column, part), seen) for part in parts}
        return replace(column, **cut)


def _cut(values: object, seen: Array) -> tuple[int | None, ...]:
    listed = np.asarray(values, dtype=object).tolist()
    return tuple(v if kept else None for v, kept in zip(listed, seen, strict=True))


def field(world: World, seed: int) -> Field:
    """24 to 100 prompts and 5 to 20 drafts, as the seed says."""
    rng = np.random.default_rng([seed, 7])
    prompts, drafts = int(rng.integers(24, 101)), int(rng.integers(5, 21))
    return Field(replace(world, prompts=prompts), seed, drafts=drafts)


@dataclass(frozen=True)
class Trial:
    """A night on which one finalist of the last good night lost ``points`` of acceptance."""

    points: float
    prompts: int
    drafts: int
    left: bool
    """It is none of tonight's finalists."""
    found: bool
    """Some gate of it is a regression."""
    told: bool
    """The notes say what became of it."""


def losses(world: World, trials: int, seed: int, policy: Policy) -> Iterator[Trial]:
    """``trials`` series of three good nights, then one on which a finalist lost 5 to 20 points;
    every other one with a new build."""
    for index in range(trials):
        series = field(world, seed + index)
        past: tuple[Night, ...] = ()
        for _ in range(3):
            again = past[-1].pick if past else None
            past = (*past, series.field_night(again).judged((), ()))
        if (seed + index) % 2:
            series.new_build()
        victims = [c.name for c in past[-1].finalists]
        victim = victims[int(series.rng.integers(len(victims)))]
        points = float(series.rng.uniform(5.0, 20.0))
        now = series.field_night(past[-1].pick, {victim: points})
        judgement = _judge(now, past, policy)
        yield Trial(
            points=points,
            prompts=series.world.prompts,
            drafts=series.drafts,
            left=victim not in series.finalists,
            found=any(f.subject == victim for f in judgement.regressions),
            told=any(note.startswith(f"{victim} ") for note in judgement.notes),
        )


@dataclass(frozen=True)
class Healthy:
    """Nights of which nothing is wrong."""

    nights: int
    alarms: tuple[str, ...]
    moved: int
    """Nights whose finalists are not those of the night before."""


def healthy(world: World, nights: int, seed: int, policy: Policy) -> Healthy:
    """Night after night against the last good one, half of them with a new build, a new series
    every 20."""
    alarms: list[str] = []
    moved = 0
    for first in range(0, nights, 20):
        series = field(world, seed + first)
        past: tuple[Night, ...] = (series.field_night(None).judged((), ()),)
        for _ in range(min(20, nights - first)):
            if series.rng.random() < 0.5:
                series.new_build()
            before = set(series.finalists)
            now = series.field_night(past[-1].pick)
            moved += before != set(series.finalists)
            judgement = _judge(now, past, policy)
            worse = tuple(f"{f.gate} of {f.subject}: {f.text}" for f in judgement.regressions)
            alarms += ["; ".join(worse)] if worse else []
            past = (*past, now.judged((), ()))  # whoever is alarmed finds nothing, and accepts
    return Healthy(nights, tuple(alarms), moved)


def _judge(now: Night, past: tuple[Night, ...], policy: Policy) -> Judgement:
    history = History(Path("simulated"), past)
    return judge(now, history.last_good(now), policy, history)
