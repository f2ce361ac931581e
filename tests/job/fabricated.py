"""A build whose steps are not run: every outcome is made up, and kept in a real store.

The steps, their keys, the store and everything above them are the real ones. What a draft
accepts and what everything costs is said by a :class:`World`, so tests know what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from cook.engines.base import EngineIdentity, ModelArgs
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.formats.trace_file import Reply, ReplyHead, TraceFile, TraceWriter
from cook.graph.execute import Executor
from cook.graph.step import Source, Step
from cook.graph.store import Artifact, Entry, Store
from cook.output import Mode, Output
from cook.prompts.prompt_set import Prompt, PromptSet, subset
from cook.record.record import (
    CompareOutcome,
    ControlOutcome,
    Difference,
    PromptRun,
    RecountOutcome,
)
from cook.scoring.ngram import NgramRequest, NgramServer
from cook.scoring.simulate import PROFILES, RULES, Positions, Simulation, simulate
from cook.steps.checks import CompareStep, ControlStep, RecountStep
from cook.steps.curve import CurveOutcome, CurveStep, SlotCurveOutcome, SlotCurveStep
from cook.steps.deal import DealOutcome, DealStep, DealtServer
from cook.steps.draft_quality import MemoryOutcome, MemoryStep
from cook.steps.live import LiveOutcome, LiveStep
from cook.steps.replay import REPLAY_FILE, ReplayOutcome, ReplayStep
from cook.steps.trace import TRACE_FILE, RecordedTraceStep, TraceOutcome, TraceStep
from tests.traces import blank_reply, server_header

EOG = 2
EXTRA = 40
"""Tokens recorded beyond the end of a reply."""


@dataclass(frozen=True)
class FakeEngine:
    """What laying out and keys ask of an engine."""

    name: str = "bundled"
    flavour: Flavour = Flavour.LLAMA_CPP
    files: tuple[Path, ...] = ()

    @property
    def identity(self) -> EngineIdentity:
        return EngineIdentity(
            self.flavour, "b1 (abc)", "abc", sha256(self.name.encode()).hexdigest()
        )

    @property
    def facts(self) -> Any:
        return SimpleNamespace(types={}, ftypes=(), flags={})

    @property
    def defaults(self) -> Mapping[str, str]:
        return {"--spec-type": "none"}

    def as_draft(self, given: ModelArgs, target: ModelArgs, context: int) -> ModelArgs:
        return given.as_draft_of(target)


@dataclass(frozen=True)
class World:
    """What the engine would have measured. Drafts are named as their steps name them.

    ``accuracy``: chance that a draft says the target's token; times in ms for one token, a
    batch of n tokens taking 1 + slope (n - 1) times as long; ``overhead_ms`` of a live step that
    no timing shows. ``failing``: labels of steps that fail, by a part of the label.
    """

    accuracy: Mapping[str, float] = field(default_factory=lambda: {"small": 0.7, "large": 0.8})
    draft_ms: Mapping[str, float] = field(default_factory=lambda: {"small": 1.0, "large": 3.0})
    target_ms: float = 20.0
    plain_ms: float | None = None
    """Of the target where no draft has arguments of its own; None: as next to a draft."""
    slope: float = 0.05
    timed: float = 1.0
    """Share of the true time that every timing says."""
    overhead_ms: float = 0.5
    temperature: float = 0.0
    reply_tokens: int = 24
    failing: tuple[str, ...] = ()
    dying: tuple[str, ...] = ()
    """Names of candidates whose server dies, by a part of the name."""
    dying_from: int = 0
    """Block from which on they do."""
    busy: tuple[str, ...] = ()
    """Labels of steps, or servers with a prompt, when another program kept two cores busy."""
    crowding: float = 1.0
    """Seconds that a block takes over those of its loads and requests."""


def seed_of(*parts: object) -> int:
    return int.from_bytes(sha256("/".join(map(str, parts)).encode()).digest()[:8])


def prompt_set(count: int = 16) -> PromptSet:
    """Prompts of two categories, each half the set, dealt to pick and report."""
    prompts = tuple(
        Prompt(f"p{i:02}", "ab"[i // 2 % 2], f"text {i}", "report" if i % 2 else "pick")
        for i in range(count)
    )
    return subset(PromptSet("mine", prompts, ""), prompts)


def source(name: str, size_bytes: int = 1000) -> Source:
    return Source(
        Path("/models") / f"{name}.gguf", f"sha256:{sha256(name.encode()).hexdigest()}", size_bytes
    )


def write_trace(path: Path, prompts: PromptSet, world: World) -> Path:
    """Replies that end at the limit, with tokens beyond; every other one at its own end."""
    header = server_header(
        target_name="target.gguf",
        eog=(EOG,),
        context=2048,
        n_predict=world.reply_tokens,
        sampler=Sampling(world.temperature, 0, 1.0, 0.0, 1.0, seed=0),
    )
    with TraceWriter(path, header) as writer:
        for index, prompt in enumerate(prompts.prompts):
            writer.append(_reply(index, prompt, world))
    return path


def _reply(index: int, prompt: Prompt, world: World) -> Reply:
    rng = np.random.default_rng(seed_of("reply", prompt.id))
    emitted = world.reply_tokens - (index % 3)
    count = emitted + EXTRA
    tokens = rng.integers(3, 8, count).astype(np.int32)
    if index % 3:
        tokens[emitted - 1] = EOG
    logp = -rng.exponential(0.3, count).astype(np.float32)
    head = ReplyHead(
        id=prompt.id,
        category=prompt.category,
        half=prompt.half,
        stop="eog" if index % 3 else "limit",
        prompt_tokens=5 + index,
        tokens=count,
        emitted=emitted,
    )
    return replace(blank_reply(head, known=True), tokens=tokens, logp=logp, chain_logp=logp)


def seen_by(said: Mapping[str, Any], reply: Reply, n_predict: int) -> Positions:
    """``reply`` as the draft that ``said`` these columns sees it."""
    head, rolled = reply.head, None
    if "rolled_position" in said:
        rows = zip(said["rolled_position"], said["rolled_confidence"], strict=True)
        rolled = {int(position): row for position, row in rows}
    return Positions(
        *(head.prompt_tokens, head.emitted, said["argmax"] == reply.tokens, said["confidence"]),
        *(np.isin(reply.tokens, [EOG]), rolled, said.get("tail_confidence")),
        n_predict=n_predict,
        context=2048,
    )


def answered(
    reply: Reply, ms: float, prompt_ms: float, run: Simulation | None, **more: Any
) -> PromptRun:
    """What a server says of a request that it decoded in ``ms``, having drafted as in ``run``."""
    head = reply.head
    return PromptRun(
        *(head.id, head.category, head.prompt_tokens, prompt_ms, head.emitted, ms),
        wall_ms=ms + prompt_ms + 2.0,
        draft_n=run.draft_n if run else None,
        draft_n_accepted=run.draft_n_accepted if run else None,
        tokens=tuple(reply.tokens[: head.emitted].tolist()),
        text="",
        stop="limit",
        **more,
    )


class Fabrication(Executor):
    """An executor that makes artifacts up instead of running steps."""

    def __init__(
        self, folder: Path, world: World | None = None, prompts: PromptSet | None = None
    ) -> None:
        super().__init__(Store(folder / "store"), Output(Mode.QUIET), logs=folder / "logs")
        self.world = world or World()
        self.prompts = prompts or prompt_set()
        self.asked: list[str] = []
        """Labels, in the order in which they were run."""
        near_tie = Difference("p01", 3, 20, 5, 6, 0.05, None, True)
        self._makers: dict[type, Callable[[Any, Path], Any]] = {
            TraceStep: self._trace,
            ReplayStep: self._replay,
            CurveStep: self._curve,
            SlotCurveStep: self._slot_curve,
            LiveStep: self._live,
            DealStep: self._deal,
            CompareStep: lambda step, _: CompareOutcome(
                len(step.live.prompts), len(step.live.prompts) - 1, (near_tie,)
            ),
            ControlStep: lambda step, _: ControlOutcome(step.width, 100, 2, 0.01, 0.1, 0.3, 0.05),
            RecountStep: lambda *_: RecountOutcome(4, 4, 100, 70, 101, 70),
            MemoryStep: lambda step, _: MemoryOutcome(step.model.size_bytes, 200, 100, ("fit",)),
        }

    def make(self, step: Step[Any]) -> Artifact:
        if (stored := self.store.find(step.kind, step.key)) is not None:
            return stored
        self.asked.append(step.label)
        if any(part in step.label for part in self.world.failing):
            raise StepError(f"{step.label}: it crashed")
        if isinstance(step, RecordedTraceStep):
            return super().make(step)
        with self.store.workspace() as directory:
            result = self._makers[type(step)](step, directory)
            adapter: TypeAdapter[Any] = TypeAdapter(step.result_type)
            artifact = self.store.commit(
                directory,
                Entry(
                    kind=step.kind,
                    key=step.key,
                    label=step.label,
                    key_parts=step.key_parts,
                    result=adapter.dump_python(result, mode="json"),
                    seconds=1.0,
                    made_from={},
                ),
            )
        self.outcomes.ran.append(step.label)
        return artifact

    def trace_of(self, step: Any) -> TraceFile:
        return TraceFile(self.outcomes.artifact(step).file(TRACE_FILE))

    def _trace(self, step: TraceStep, directory: Path) -> TraceOutcome:
        chosen = subset(self.prompts, step.prompts)
        temperature = step.sampling.temperature or self.world.temperature
        write_trace(directory / TRACE_FILE, chosen, replace(self.world, temperature=temperature))
        return TraceOutcome(len(chosen.prompts), 0, 0)

    def matches(self, name: str, reply: Reply, salt: str = "") -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(seed_of(name, reply.head.id, salt))
        accuracy = self.world.accuracy[name.split(" ")[0]]
        return np.asarray(rng.random(reply.head.tokens) < accuracy)

    def columns(self, name: str, reply: Reply, salt: str = "", steps: int = 0) -> dict[str, Any]:
        """What the draft ``name`` says of a reply; ``steps`` of a rollout after every mismatch."""
        rng = np.random.default_rng(seed_of(name, reply.head.id, "confidence"))
        count = reply.head.tokens
        match = self.matches(name, reply, salt)
        zeros = np.zeros(count, np.float32)
        sure = np.where(match, 0.9, 0.4) * rng.uniform(0.5, 1.1, count)
        columns = {
            "argmax": np.where(match, reply.tokens, reply.tokens + 10).astype(np.int32),
            "confidence": sure.astype(np.float32),
            "logq_t": np.where(match, reply.logp, reply.logp - 2).astype(np.float32),
            "rank": np.where(match, 0, 3).astype(np.int32),
            **dict.fromkeys(("logsumexp", "logq", "margin", "entropy"), zeros),
        }
        if steps:
            wrong = np.nonzero(~match)[0].astype(np.int32)
            shape = (len(wrong), steps)
            columns |= {
                "rolled_position": wrong,
                "rolled_length": np.full(len(wrong), steps, np.int32),
                "rolled_tokens": np.ones(shape, np.int32),
                "rolled_confidence": rng.uniform(0.1, 1, shape).astype(np.float32),
                "tail_tokens": np.ones(steps, np.int32),
                "tail_confidence": rng.uniform(0.1, 1, steps).astype(np.float32),
            }
        return columns

    def _replay(self, step: ReplayStep, directory: Path) -> ReplayOutcome:
        arrays: dict[str, Any] = {}
        positions = matches = 0
        for index, reply in enumerate(self.trace_of(step.trace)):
            if step.wants(reply.head.id):
                found = self.columns(step.name, reply, str(step.width or ""), step.rollout_steps)
                positions += reply.head.emitted - 1
                right = found["argmax"] == reply.tokens
                matches += int(right[1 : reply.head.emitted].sum())
                arrays |= {f"{index}.{name}": column for name, column in found.items()}
        np.savez(directory / REPLAY_FILE, allow_pickle=False, **arrays)
        return ReplayOutcome(positions, matches, matches, 0.25, 0.01, 1, 1)

    def batch_s(self, step: CurveStep | SlotCurveStep, width: int, depth: int) -> float:
        world = self.world
        one = world.target_ms if step.verifies else world.draft_ms[step.name.split(" ")[0]]
        if step.name == "without a draft" and world.plain_ms is not None:
            one = world.plain_ms
        # Every timing has an error of its own.
        own = np.random.default_rng(seed_of(step.name, getattr(step, "turn", 0))).normal(1, 0.002)
        factor = world.timed * (1 + depth / 10_000)
        return float(one * factor * own * (1 + world.slope * (width - 1)) / 1000)

    def prompt_s(self, one_ms: float, tokens: int) -> float:
        """A prompt, of a model whose single token takes ``one_ms``."""
        return one_ms * (1 + self.world.slope * (tokens - 1)) / 1000

    def _curve(self, step: CurveStep, _: Path) -> CurveOutcome:
        depths, sizes = (5, 100), (1, 10, 25)
        return CurveOutcome(
            depths=depths,
            widths=step.widths,
            seconds=tuple(tuple(self.batch_s(step, w, d) for w in step.widths) for d in depths),
            sample_s=0.00001,
            prompt_tokens=sizes,
            prompt_seconds=tuple(self.prompt_s(1000 * self.batch_s(step, 1, 0), s) for s in sizes),
            others_cores=self.others(step),
            read_shares=(1.0,) * len(step.reserved),
        )

    def _slot_curve(self, step: SlotCurveStep, _: Path) -> SlotCurveOutcome:
        depths = (5, 100)
        return SlotCurveOutcome(
            sequences=step.sequences,
            depths=depths,
            widths=step.widths,
            seconds=tuple(
                tuple(tuple(self.batch_s(step, s * w, d) for w in step.widths) for d in depths)
                for s in step.sequences
            ),
            others_cores=self.others(step),
        )

    def others(self, step: Step[Any], request: str = "") -> float:
        found = any(part in step.label or part == request for part in self.world.busy)
        return 2.0 if found else 0.0

    def _deal(self, step: DealStep, directory: Path) -> DealOutcome:
        """Every server's requests; one that fails by its name is out."""
        dealt = []
        for server in step.servers:
            dies = step.block >= self.world.dying_from
            if dies and any(part in server.name for part in self.world.dying):
                dealt.append(DealtServer(None, f"{server.name}: it crashed"))
                continue
            outcome = self._live(server, directory)
            runs = []
            for order, run in enumerate(outcome.runs, 1):
                busy = self.others(step, f"{server.name} {run.id}")
                runs.append(replace(run, block=step.block, order=order, others_cores=busy))
            dealt.append(DealtServer(replace(outcome, runs=tuple(runs))))
        if dealt[0].outcome is None:
            raise StepError(f"{step.label}: {dealt[0].failure}")
        ran = [one.outcome for one in dealt if one.outcome is not None]
        seconds = sum(o.load_seconds + sum(r.wall_ms for r in o.runs) / 1000 for o in ran)
        crowded = {run.id for one in ran for run in one.runs if run.disturbed}
        few = len(crowded) < len(step.servers[0].prompts)
        left_out = tuple(sorted(crowded)) if few else ()
        return DealOutcome(tuple(dealt), step.together, self.world.crowding * seconds, left_out)

    def _live(self, step: LiveStep, _: Path) -> LiveOutcome:
        """Counted as the engine counts; steps priced as timed, with the overhead on top."""
        world, rules = self.world, RULES[PROFILES[step.engine.flavour]]
        numbers = {prompt.id: index for index, prompt in enumerate(self.prompts.prompts)}
        runs = []
        server, warm_up = self._warmed(step)
        for prompt in step.prompts:
            reply = _reply(numbers[prompt.id], prompt, world)
            head, run, ms = reply.head, None, 0.0
            if step.settings is not None:
                name = step.name.split(" ")[0]
                positions = seen_by(self.columns(name, reply, "", 16), reply, step.max_tokens)
                run = simulate(positions, step.settings, PROFILES[step.engine.flavour])
                mirrored = run.steps if rules.mirrors else run.catch_up.sum()
                ms += float(run.decodes.sum() + mirrored) * world.draft_ms[name]
                if rules.reads_late:
                    ms += 1000 * self.prompt_s(world.draft_ms[name], head.prompt_tokens)
            if server is not None:
                asked = reply.prompt, reply.tokens, head.emitted
                run = server.answer(
                    NgramRequest(*asked, frozenset({EOG}), step.max_tokens, step.context)
                )
            steps = run.steps if run is not None else head.emitted - 1
            ms += steps * (world.target_ms + world.overhead_ms)
            ms += (run.draft_n if run is not None else 0) * world.slope * world.target_ms
            seed = seed_of(step.name, prompt.id, step.repeat, len(self.asked))
            noise = np.random.default_rng(seed).normal(1, 0.01)
            runs.append(answered(reply, ms * noise, head.prompt_tokens * 0.8, run))
        busy_s = sum(run.wall_ms for run in runs) / 1000 / step.slots**0.5
        return LiveOutcome(
            *(tuple(runs), 0.5, 4000 + len(runs)),
            *(("llama-server", "-m", "/models/target.gguf"), self.others(step)),
            warm_up=warm_up,
            busy_s=busy_s if step.slots > 1 else None,
        )

    def _warmed(
        self, step: LiveStep
    ) -> tuple[NgramServer | None, tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """A server that drafts without a file, and what it was warmed up with."""
        if step.ngram is None:
            return None, None
        server = NgramServer(step.ngram, step.engine.flavour)
        prompt, reply = (3, 4, 5, 6, 7, 3, 4, 5), (6, 7, 3, 4)
        ids, said = np.array(prompt, np.int32), np.array(reply, np.int32)
        server.answer(NgramRequest(ids, said, len(reply), frozenset({EOG}), 16, step.context))
        return server, (prompt, reply)
