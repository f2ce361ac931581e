"""Simulated nights with the noise that real ones have, as input for the real gates.

Acceptance: each prompt has a text; at each of its positions the draft's guess hits or not, with
a chance that depends on the category, on the prompt, and on where in the text it is (an AR(1)
difficulty, so that hits come in runs). Cycles walk over these hits as the engine does. The same
build sees the same hits each night. A new build parts from the old text in some replies, from
some position on (there the hits are drawn anew), and flips a few near ties of the draft.

Time: request noise with rare spikes, drift of each server start, and a factor of the whole
night (clock, temperature).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.nightly.gates import Judgement, Policy, judge
from cook.nightly.history import History
from cook.nightly.night import VERSION, CandidateNight, Night, NightDraft, ReplayNight

Array = npt.NDArray[Any]

CATEGORIES = 8
ROUNDS = 2
CYCLE_COST = {4: 1.75, 8: 2.35, 16: 3.4}
"""Time of a cycle over that of an undrafted token, by draft length: a dear draft, as real ones."""


@dataclass(frozen=True)
class World:
    """What the machine and the engine do to measurements. Spreads are shares (0.01 is 1 %)."""

    # As pipelines/nightly.yaml has it, with the default prompts.
    prompts: int = 112
    tokens: int = 384
    repeats: int = 3
    request_noise: float = 0.02
    spikes: float = 0.01
    """Share of requests that something delays by 5-50 %."""
    start_noise: float = 0.008
    """Of each server start: the same for all of its requests."""
    night_noise: float = 0.015
    slow_nights: float = 0.1
    """Share of nights that are 3 % slower as a whole."""
    texts_differ: float = 0.25
    """Replies that a new build words differently: 0.03-0.25 seen on CPUs, 0.78 on a GPU."""
    tie_flips: float = 0.003
    """Positions where a new build flips a near tie of the draft."""


@dataclass(frozen=True)
class Harm:
    """What is wrong tonight. ``only`` names the candidates it touches; empty: all."""

    acceptance_points: float = 0.0
    slowdown: float = 0.0
    """Extra time of a drafted cycle, as a share of speed lost."""
    engine_slowdown: float = 0.0
    only: tuple[str, ...] = ()

    def on(self, name: str) -> bool:
        return not self.only or name in self.only


@dataclass
class Series:
    """One recipe on one machine, night after night."""

    world: World
    seed: int
    lengths: tuple[int, ...] = (4, 8, 16)
    hits: dict[str, Array] = field(default_factory=dict)
    build: int = 0
    night: int = 0
    _counts: dict[tuple[int, str], tuple[Array, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        n = self.world.prompts
        self.category = np.arange(n) % CATEGORIES
        level = np.linspace(1.2, 3.6, CATEGORIES)
        self.ease = level[self.category] + self.rng.normal(0.0, 0.5, n)
        text = self._difficulty()
        for length in self.lengths:  # one draft of each name, alike on the same text
            own = self.rng.random(text.shape)
            self.hits[self._name(length)] = own < _sigmoid(self.ease[:, None] + text)

    @staticmethod
    def _name(length: int) -> str:
        return f"Q{length} n_max={length}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._name(length) for length in self.lengths)

    def new_build(self) -> None:
        """The engine changes: other near ties, other words in some replies."""
        self.build += 1
        world, n = self.world, self.world.prompts
        differs = self.rng.random(n) < world.texts_differ
        start = (self.rng.beta(1.0, 2.5, n) * world.tokens).astype(int)
        anew = differs[:, None] & (np.arange(world.tokens) >= start[:, None])
        text = self._difficulty()
        for name, before in self.hits.items():
            fresh = self.rng.random(text.shape) < _sigmoid(self.ease[:, None] + text)
            flips = self.rng.random(text.shape) < world.tie_flips
            self.hits[name] = np.where(anew, fresh, before ^ flips)

    def _walked(self, name: str, length: int) -> tuple[Array, Array]:
        """Counts of this build, the same each night."""
        if (known := self._counts.get((self.build, name))) is None:
            known = self._counts[self.build, name] = walk(self.hits[name], length)
        return known

    def measure(self, harm: Harm | None = None) -> Night:
        """One night of this series."""
        harm = harm or Harm()
        world, rng = self.world, self.rng
        self.night += 1
        pace = np.exp(rng.normal(0.0, world.night_noise))
        pace *= 1.03 if rng.random() < world.slow_nights else 1.0
        pace /= 1.0 - harm.engine_slowdown
        n = world.prompts
        tokens = np.full(n, world.tokens - 1)
        columns = [self._column("no draft", None, tokens, tokens * 10.0 * pace, None, None)]
        replays = []
        for length in self.lengths:
            name = self._name(length)
            hits = self.hits[name]
            if harm.acceptance_points and harm.on(name):
                hits = worsened(hits, length, harm.acceptance_points / 100, rng)
                accepted, drafted = walk(hits, length)
            else:
                accepted, drafted = self._walked(name, length)
            cycles = tokens - accepted
            cost = CYCLE_COST[length] * 10.0 * pace
            if harm.on(name):
                cost /= 1.0 - harm.slowdown
            columns.append(
                self._column(name, name.split()[0], tokens, cycles * cost, drafted, accepted)
            )
            counts = tuple(drafted.tolist()), tuple(accepted.tolist())
            replays.append(ReplayNight(name.split()[0], None, length, *counts))
        quality = [self._draft(name.split()[0], index) for index, name in enumerate(self.names)]
        speed = {c.name: sum(c.tokens) / sum(c.decode_ms) for c in columns}  # type: ignore[arg-type]
        pick = max(speed, key=lambda name: speed[name])
        return self._night(pick, columns, quality, replays)

    def _night(
        self,
        pick: str,
        columns: Sequence[CandidateNight],
        quality: Sequence[NightDraft],
        replays: Sequence[ReplayNight],
    ) -> Night:
        digest = f"{self.build:064x}"
        return Night(
            version=VERSION,
            id=uuid.UUID(int=int(self.rng.integers(1 << 62))).hex[-12:],
            created=f"night {self.night}",
            cell="simulated",
            recipe="simulated",
            recipe_sha256="0" * 64,
            engines={"bundled": EngineIdentity(Flavour.LLAMA_CPP, f"b{self.build}", None, digest)},
            machine="m" * 16,
            prompts_sha256="p" * 64,
            max_tokens=self.world.tokens,
            temperature=0.0,
            maximize="decode_speed",
            pick=pick,
            pick_sentence="",
            disturbed=0,
            failures=(),
            regressions=(),
            good=None,
            prompts=tuple((f"p{i}", f"c{c}") for i, c in enumerate(self.category)),
            candidates=tuple(columns),
            drafts=tuple(quality),
            replays=tuple(replays),
        )

    def _column(
        self,
        name: str,
        draft: str | None,
        tokens: Array,
        decode_ms: Array,
        drafted: Array | None,
        accepted: Array | None,
    ) -> CandidateNight:
        """What is measured of ``decode_ms``: medians over repeats, each in its own servers."""
        world, rng, n = self.world, self.rng, len(tokens)
        measured = []
        for _ in range(world.repeats):
            starts = np.exp(rng.normal(0.0, world.start_noise, ROUNDS))[np.arange(n) % ROUNDS]
            request = np.exp(rng.normal(0.0, world.request_noise, n))
            spike = np.where(rng.random(n) < world.spikes, rng.uniform(1.05, 1.5, n), 1.0)
            measured.append(decode_ms * starts * request * spike)
        ms = np.median(measured, axis=0)
        none = (None,) * n
        return CandidateNight(
            name=name,
            engine="bundled",
            draft=draft,
            tokens=tuple(tokens.tolist()),
            decode_ms=tuple(ms.tolist()),
            wall_ms=tuple((ms + 200.0).tolist()),
            drafted=none if drafted is None else tuple(drafted.tolist()),
            accepted=none if accepted is None else tuple(accepted.tolist()),
        )

    def _draft(self, name: str, index: int) -> NightDraft:
        """Quality moves a little with each build: another imatrix, other arithmetic."""
        rng = np.random.default_rng([self.seed, self.build, index])
        perplexity = (8.0 + index) * np.exp(rng.normal(0.0, 0.001))
        kld = 0.05 * (1 + index) * np.exp(rng.normal(0.0, 0.01))
        return NightDraft(name, 10**9, perplexity, perplexity * 0.01, kld, kld * 0.03, 100, 512)

    def _difficulty(self) -> Array:
        """[prompts, positions]: how easy the text is, there; AR(1) of unit variance."""
        shocks = self.rng.normal(0.0, 1.0, (self.world.prompts, self.world.tokens))
        level = np.empty_like(shocks)
        level[:, 0] = shocks[:, 0]
        for t in range(1, self.world.tokens):
            level[:, t] = 0.8 * level[:, t - 1] + 0.6 * shocks[:, t]
        return level


def walk(hits: Array, length: int) -> tuple[Array, Array]:
    """(accepted, drafted) of each prompt: cycles of ``length`` drafted tokens over ``hits``."""
    n, end = hits.shape
    runs = np.zeros((n, end + 1), dtype=int)
    for t in range(end - 1, -1, -1):
        runs[:, t] = np.where(hits[:, t], runs[:, t + 1] + 1, 0)
    position = np.ones(n, dtype=int)  # the first token is the prompt's
    accepted, drafted = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    rows = np.arange(n)
    while (going := position < end).any():
        here = np.minimum(position, end - 1)
        asked = np.where(going, np.minimum(length, end - here), 0)
        kept = np.minimum(runs[rows, here], np.maximum(asked - 1, 0)) * going
        accepted += kept
        drafted += asked
        position += np.where(going, kept + 1, 0)
    return accepted, drafted


def worsened(hits: Array, length: int, loss: float, rng: np.random.Generator) -> Array:
    """``hits`` with so many lost that acceptance falls by ``loss`` (a share) over all prompts."""
    accepted, drafted = walk(hits, length)
    wanted = accepted.sum() / drafted.sum() - loss
    chance = rng.random(hits.shape)
    low, high = 0.0, 0.5
    for _ in range(14):
        middle = (low + high) / 2
        got, asked = walk(hits & (chance > middle), length)
        low, high = (middle, high) if got.sum() / asked.sum() > wanted else (low, middle)
    return hits & (chance > high)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def night_with(night: Night, **changes: Any) -> Night:
    """``night`` with fields replaced."""
    return replace(night, **changes)


def false_alarms(
    world: World, nights: int, seed: int, policy: Policy, new_builds: float = 0.5
) -> list[str]:
    """What the gates call a regression in ``nights`` healthy nights, one entry a night with any.

    Night after night against the last good one, as ``cook sweep`` does, a new series every 50.
    """
    alarms = []
    for index in range(0, nights, 50):
        series = Series(world, seed + index)
        past: tuple[Night, ...] = (series.measure().judged((), ()),)
        for _ in range(min(50, nights - index)):
            if series.rng.random() < new_builds:
                series.new_build()
            now, judgement = judged(series.measure(), past, policy)
            if judgement.regressions:
                alarms.append(
                    "; ".join(f"{f.gate} of {f.subject}: {f.text}" for f in judgement.regressions)
                )
            past = (*past, now)
    return alarms


def caught(
    world: World, harm: Harm, trials: int, seed: int, policy: Policy, *, new_build: bool
) -> dict[str, int]:
    """In how many of ``trials`` each gate calls ``harm`` a regression; ``any`` for any gate.

    Each trial is a series of its own with 12 good nights, the builds changing.
    """
    counts: dict[str, int] = {"any": 0}
    for index in range(trials):
        series = Series(world, seed + index)
        past: tuple[Night, ...] = ()
        for night in range(12):
            if night % 3 == 2:
                series.new_build()
            past = (*past, series.measure().judged((), ()))
        if new_build:
            series.new_build()
        only = harm.only
        if only == (PICK,):
            only = (past[-1].pick or "",)
        _, judgement = judged(series.measure(replace(harm, only=only)), past, policy)
        gates = {f.gate for f in judgement.regressions}
        for gate in (*gates, *(("any",) if gates else ())):
            counts[gate] = counts.get(gate, 0) + 1
    return counts


PICK = "the pick"
"""Stands in ``Harm.only`` for whichever candidate the last good night picked."""


def judged(now: Night, past: tuple[Night, ...], policy: Policy) -> tuple[Night, Judgement]:
    """Tonight by the very gates, and the night with its verdict."""
    history = History(Path("simulated"), past)
    judgement = judge(now, history.last_good(now), policy, history)
    return now.judged((), tuple(f.gate for f in judgement.regressions)), judgement


WORLDS: Mapping[str, World] = {
    "CPU": World(),
    "GPU": World(texts_differ=0.78),
}
