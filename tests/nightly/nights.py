"""Simulated nights with the noise that real ones have, as input for the real gates.

Counts: each prompt has a reply, of which each draft accepts a share of its own. One build repeats
its counts exactly. A new build writes other words in some replies, whose counts are drawn again.

Time: noise of each request with rare spikes, an error that all requests of a server start share,
a pace of the whole night and of each block. The candidates of a block run at the same pace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cook.engines.base import EngineIdentity
from cook.formats.quant_types import Flavour
from cook.nightly.gates import Judgement, Verdict, judge
from cook.nightly.history import History, Night, night_of
from cook.nightly.pipeline import GatesSpec
from cook.record.record import Draft, PromptFigures, Quality, ReplayedPrompts
from tests.bare_records import CANDIDATE, DRAFT, RECORD

Array = npt.NDArray[Any]
CATEGORIES = 8
LENGTHS = (4, 8, 16)
CYCLE_COST = {4: 1.75, 8: 2.35, 16: 3.4}
"""Time of a cycle over that of a token without a draft, by draft length."""
PLAIN_MS = 10.0


@dataclass(frozen=True)
class World:
    """What the machine and the engine do to measurements. Spreads are shares (0.01 is 1 %)."""

    prompts: int = 112
    tokens: int = 384
    starts: int = 1
    """Server starts of each candidate in a night; each has as many of the prompts."""
    reference: bool = False
    """Every candidate also runs on a reference build."""
    request_noise: float = 0.02
    spikes: float = 0.002
    """Share of requests delayed by 5 to 50 %, left after disturbed ones are dealt again."""
    start_noise: float = 0.008
    night_noise: float = 0.015
    block_noise: float = 0.005
    slow_nights: float = 0.1
    """Share of nights that are 3 % slower as a whole."""
    new_builds: float = 0.5
    """Share of nights with a new build of the engine."""
    texts_differ: float = 0.25
    """Replies that a new build words differently: 0.03 to 0.25 seen on CPUs, 0.78 on a GPU."""
    reworded: float = 0.12
    """How much acceptance of a reply moves with its words."""


@dataclass(frozen=True)
class Harm:
    """What is wrong tonight. ``only`` names the candidates that it touches; empty: all."""

    slowdown: float = 0.0
    """Share of speed lost."""
    only: tuple[str, ...] = ()

    def on(self, name: str) -> bool:
        return not self.only or name in self.only


@dataclass
class Series:
    """One recipe on one machine, night after night."""

    world: World
    seed: int
    lengths: tuple[int, ...] = LENGTHS
    night: int = 0
    build: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        n = self.world.prompts
        self.ease = np.log(1.3) + self.rng.normal(0.0, 0.25, n)
        self.texts: Array = np.zeros(n, dtype=np.int64)
        self.first_texts = self.texts

    def new_build(self) -> None:
        """The engine changes: other words in some replies."""
        self.build += 1
        differs = self.rng.random(self.world.prompts) < self.world.texts_differ
        self.texts = np.where(differs, self.build, self.texts)

    def cycles(self, length: int, texts: Array) -> Array:
        """Verification cycles of each reply: the same for the same text."""
        moved = np.zeros(self.world.prompts)
        for text in np.unique(texts[texts > 0]):
            drawn = np.random.default_rng([self.seed, text])
            words = drawn.normal(0.0, self.world.reworded, self.world.prompts)
            moved = np.where(texts == text, words, moved)
        accepted = np.minimum(np.exp(self.ease + moved) * (0.7 + 0.1 * np.log2(length)), length)
        return np.asarray(np.ceil((self.world.tokens - 1) / (1 + accepted)), dtype=np.int64)

    def measure(self, harm: Harm | None = None) -> Night:
        """One night of this series."""
        harm = harm or Harm()
        world, rng, n = self.world, self.rng, self.world.prompts
        self.night += 1
        tokens = np.full(n, world.tokens - 1)
        block = np.arange(n) * world.starts // n
        pace = np.exp(rng.normal(0.0, world.night_noise))
        pace *= 1.03 if rng.random() < world.slow_nights else 1.0
        paces = pace * np.exp(rng.normal(0.0, world.block_noise, world.starts))[block]
        candidates, replays = [], []
        for length in (None, *self.lengths):
            name = "no draft" if length is None else f"Q{length} n_max={length}"
            columns = []
            for texts, harmed in ((self.texts, harm.on(name)), (self.first_texts, False)):
                cycles, cost = tokens, PLAIN_MS
                if length is not None:
                    cycles, cost = self.cycles(length, texts), PLAIN_MS * CYCLE_COST[length]
                ms = cycles * cost * paces / (1.0 - harm.slowdown * harmed)
                counts = None if length is None else (cycles * length, tokens - cycles)
                columns.append(self._column(tokens, ms, block, counts))
            reference = columns[1] if world.reference else None
            draft = None if length is None else f"Q{length}"
            candidates.append(
                replace(CANDIDATE, name=name, draft=draft, prompts=columns[0], reference=reference)
            )
            if length is not None:
                of: Any = columns[0]
                columns_of = (of.ids, of.categories, of.drafted, of.accepted)
                words = tuple(f"{text:x}" for text in self.texts)
                replays.append(
                    ReplayedPrompts("bundled", f"Q{length}", None, length, *columns_of, words)
                )
        fastest = max(candidates, key=lambda c: sum(c.prompts.tokens) / sum(c.prompts.decode_ms))
        digest = f"{self.build:064x}"
        record = replace(
            RECORD,
            created=f"2026-01-01T{self.night // 60:02}:{self.night % 60:02}:00Z",
            engines={"bundled": EngineIdentity(Flavour.LLAMA_CPP, f"b{self.build}", None, digest)},
            max_tokens=world.tokens,
            candidates=tuple(candidates),
            drafts=tuple(self._draft(f"Q{length}", i) for i, length in enumerate(self.lengths)),
            replayed=tuple(replays),
            pick=replace(RECORD.pick, candidate=fastest.name, sentence=""),
        )
        return replace(night_of(record, "simulated"), id=f"{rng.integers(1 << 48):012x}")

    def good_nights(self, count: int) -> list[Night]:
        return [self.measure().judged((), ()) for _ in range(count)]

    def _column(
        self, tokens: Array, ms: Array, block: Array, counts: tuple[Array, Array] | None
    ) -> PromptFigures:
        """What is measured of requests that take ``ms``."""
        world, rng, n = self.world, self.rng, len(tokens)
        started = np.exp(rng.normal(0.0, world.start_noise, world.starts))[block]
        spike = np.where(rng.random(n) < world.spikes, rng.uniform(1.05, 1.5, n), 1.0)
        ms = ms * started * spike * np.exp(rng.normal(0.0, world.request_noise, n))
        none: tuple[int | None, ...] = (None,) * n
        return PromptFigures(
            ids=tuple(f"p{i}" for i in range(n)),
            categories=tuple(f"c{i % CATEGORIES}" for i in range(n)),
            tokens=tuple(tokens.tolist()),
            decode_ms=tuple(ms.tolist()),
            wall_ms=tuple((ms + 200.0).tolist()),
            drafted=none if counts is None else tuple(counts[0].tolist()),
            accepted=none if counts is None else tuple(counts[1].tolist()),
            prompt_ms=(200.0,) * n,
            block=tuple(block.tolist()),
            order=tuple(range(n)),
            start=tuple(block.tolist()),
        )

    def _draft(self, name: str, index: int) -> Draft:
        """Quality moves by a little with each build: other arithmetic."""
        rng = np.random.default_rng([self.seed, self.build, index])
        perplexity = (8.0 + index) * np.exp(rng.normal(0.0, 0.001))
        kld = 0.05 * (1 + index) * np.exp(rng.normal(0.0, 0.01))
        quality = Quality(perplexity, 0.1, 100, 512, mean_kld=kld, mean_kld_error=0.001)
        return replace(DRAFT, quant=name, file_bytes=10**9, quality=quality, quality_reason=None)


def judged(now: Night, past: list[Night], gates: GatesSpec) -> Judgement:
    """Tonight by the real gates; it is appended to ``past`` with its verdict."""
    judgement = judge(now, History(Path("simulated"), tuple(past)).reference(now.series), gates)
    past.append(now.judged((), tuple(f.gate for f in judgement.regressions)))
    return judgement


def healthy(series: Series, nights: int, past: list[Night], gates: GatesSpec) -> list[str]:
    """The regressions seen in ``nights`` on which nothing is wrong, a line for each such night."""
    alarms = []
    for _ in range(nights):
        if series.rng.random() < series.world.new_builds:
            series.new_build()
        if worse := judged(series.measure(), past, gates).regressions:
            alarms.append("; ".join(f"{f.gate} of {f.subject}: {f.text}" for f in worse))
    return alarms


def false_alarms(world: World, nights: int, seed: int, gates: GatesSpec) -> list[str]:
    """The same over series of 50 nights each, after three nights on record."""
    alarms = []
    for index in range(0, nights, 50):
        series = Series(world, seed + index)
        past: list[Night] = []
        healthy(series, 3, past, gates)
        past = [replace(night, good=True, regressions=()) for night in past]
        alarms += healthy(series, min(50, nights - index), past, gates)
    return alarms


def found(judgement: Judgement, name: str) -> bool:
    """Whether the speed of a candidate is a regression."""
    return any("speed" in f.gate and f.subject == name for f in judgement.regressions)


def nights_until_found(
    world: World,
    slowdown: float,
    trials: int,
    seed: int,
    gates: GatesSpec,
    nights: int = 1,
    history: int = 20,
) -> list[int]:
    """After how many nights a pick that gets slower by so much each night is found, of those of
    ``trials`` in which it is. Each is a series of its own after ``history`` good nights."""
    days = []
    for index in range(trials):
        series = Series(world, seed + index)
        past = series.good_nights(history)
        pick = past[0].pick or ""
        for night in range(1, nights + 1):
            harm = Harm(1 - (1 - slowdown) ** night, only=(pick,))
            if found(judged(series.measure(harm), past, gates), pick):
                days.append(night)
                break
    return days


def starts_printed(world: World, seed: int, gates: GatesSpec) -> int:
    """How many starts a side `cook sweep` prints for the tolerance, after 20 nights."""
    series = Series(world, seed)
    past = series.good_nights(20)
    judgement = judged(series.measure(), past, gates)
    return int(judgement.power.split(" needs ")[1].split()[0])


def verdicts(judgement: Judgement, gate: str) -> dict[str, Verdict]:
    return {f.subject: f.verdict for f in judgement.findings if f.gate == gate}
