"""Step: run the target once over the prompts and keep its replies, token by token."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs
from cook.errors import InputError, StepError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import HeadlessTrace, TraceFile
from cook.graph.step import Cost, JsonValue, Source, Step, Workbench, source
from cook.paths import cook_home
from cook.prompts.prompt_set import Prompt
from cook.steps.work import (
    CHUNK_TOKENS,
    Phase,
    computed_bytes,
    context_bytes,
    prompt_tokens,
    read_bytes,
    trunk_bytes,
    wide,
)
from cook.trace.session import EXTRA, TOP, TracePlan, TraceTotals, record, trace_totals

TRACE_FILE = "target.trace"


@dataclass(frozen=True)
class TraceOutcome:
    """``replies`` recorded with ``tokens`` emitted tokens in all; ``holes`` of them have no
    probabilities."""

    replies: int
    tokens: int
    holes: int


def _is_damaged(path: Path) -> bool:
    try:
        TraceFile(path)
    except InputError as error:
        return not isinstance(error, HeadlessTrace)
    return False


@dataclass(frozen=True)
class TraceStep(Step[TraceOutcome]):
    """The trace of ``target`` over ``prompts``; artifact ``target.trace``.

    Threads stay out of the key with all arguments that only place the model: they change no token
    that a near-tie does not change anyway, and the trace is a fixed text for every draft.
    ``batch_width``: tokens of the batch that computes each token.
    """

    engine: Engine
    target: Source
    args: ModelArgs
    context: int
    prompts: tuple[Prompt, ...]
    max_tokens: int
    sampling: Sampling
    chat: bool
    batch_width: int = 1

    kind: ClassVar[str] = "trace"
    phase: ClassVar[str] = Phase.TRACE
    version: ClassVar[int] = 2
    """2: the trace's version 2."""
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        at = f" at {self.sampling.chain}" if self.sampling.temperature else ""
        return f"trace{at} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "context": self.context,
            "prompts": [[p.id, p.whole] for p in self.prompts],
            "max_tokens": self.max_tokens,
            "sampler": asdict(self._plan().sampler),
            "chat": self.chat,
            "top": TOP,
            "extra": EXTRA,
            **({"batch_width": self.batch_width} if self.batch_width > 1 else {}),
            **self.args.numerics(),
        }

    @property
    def tokens(self) -> float:
        """Of all replies, at most."""
        return float(len(self.prompts) * self.max_tokens)

    def prompt_tokens(self) -> Sequence[float]:
        """Of each prompt, about."""
        return prompt_tokens(self.prompts, self.target)

    def cost(self) -> Cost:
        size, each = trunk_bytes(self.target) or 0.0, read_bytes(self.target)
        # Each token of a batch may ask for experts of its own.
        read = max(min(size, self.batch_width * each), wide(self.batch_width) * each)
        computed = sum(self.prompt_tokens()) * computed_bytes(self.target)
        held = size + context_bytes(self.target, self.args, self.context)
        return Cost((size,), self.tokens * read, self.tokens, computed, memory_bytes=held)

    def predicted_bytes(self) -> int:
        return len(self.prompts) * (self.max_tokens + EXTRA) * (24 + 6 * TOP)

    def run(self, bench: Workbench) -> TraceOutcome:
        from cook.trace.worker_target import WorkerTarget

        # Kept outside the store until whole, so that a crash costs one reply, not the trace. CPU
        # and GPU have one key, but what was begun on the one does not go on on the other.
        place = "gpu" if self.args.n_gpu_layers else "cpu"
        partial = cook_home() / "partial" / f"trace-{self.key}-{place}"
        if partial.exists() and _is_damaged(partial):
            partial.unlink()  # it would be in the way of every build
        count = len(self.prompts)
        placed = (self.engine, self.target, self.args, self.context, self.chat)
        with WorkerTarget(*placed, bench.supervisor, bench.workers) as target:
            found = record(target, self._plan(), partial, lambda n: bench.advance(n / count))
        if found.dropped:
            lost = found.dropped[0]
            raise StepError(
                f"{self.label}: {len(found.dropped)} of {count} prompts cannot be recorded; "
                f"{lost.id}: {lost.reason}",
                hint="raise score.context, or choose categories or a limit without them",
            )
        shutil.move(partial, bench.directory / TRACE_FILE)
        return _outcome(found)

    def _plan(self) -> TracePlan:
        limits, chain = (self.max_tokens, self.context), self.sampling.applied()
        return TracePlan(self.prompts, *limits, chain, batch_width=self.batch_width)


@dataclass(frozen=True)
class RecordedTraceStep(Step[TraceOutcome]):
    """A trace that the user has, in the place of a :class:`TraceStep`: copied whole, verified."""

    file: Source
    replies: int
    max_tokens: int

    kind: ClassVar[str] = "recorded-trace"
    phase: ClassVar[str] = Phase.TRACE
    batch_width: ClassVar[int] = 1
    """Unknown: as most are recorded."""

    @property
    def label(self) -> str:
        return f"trace {self.file.path.name}"

    def inputs(self) -> Mapping[str, Source]:
        return {"trace": self.file}

    def params(self) -> Mapping[str, JsonValue]:
        return {}

    @property
    def tokens(self) -> float:
        """Of all replies, at most."""
        return float(self.replies * self.max_tokens)

    def prompt_tokens(self) -> Sequence[float]:
        """Of each prompt: a guess, since a recording has no texts."""
        return [float(CHUNK_TOKENS)] * max(self.replies, 1)

    def cost(self) -> Cost:
        return Cost(copied_bytes=float(self.file.size_bytes))

    def predicted_bytes(self) -> int:
        return self.file.size_bytes

    def run(self, bench: Workbench) -> TraceOutcome:
        path = bench.directory / TRACE_FILE
        shutil.copyfile(self.file.path, path)
        return _outcome(trace_totals(path))


Trace = TraceStep | RecordedTraceStep


def read_trace(bench: Workbench, step: Trace) -> TraceFile:
    """What ``step`` recorded."""
    return TraceFile(bench.file(step, TRACE_FILE))


def given_trace(path: Path) -> RecordedTraceStep:
    """The trace at ``path`` as a step; InputError when it is none, or holds no reply."""
    trace = TraceFile(path)
    if not len(trace):
        raise InputError(f"{path}: no reply is recorded yet", hint="record it: cook trace")
    return RecordedTraceStep(source([path]), len(trace), trace.header.n_predict)


def _outcome(found: TraceTotals) -> TraceOutcome:
    return TraceOutcome(found.replies, found.tokens, found.holes)
