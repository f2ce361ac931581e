"""Step: what a decode of b tokens costs, on real windows of the trace, at real depths.

Verification is far from flat in b (docs/internals/scoring.md#prices), a mixture of experts pays for
every expert that the batch touches, so real windows are timed and not repeated ids; and cost grows
with the context. Alone on the machine, repeats interleaved over widths, medians.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.trace_file import TraceFile
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.scoring.price import BatchCurve
from cook.steps.live import Watch, told
from cook.steps.quantize import MODEL_FILE
from cook.steps.trace import TRACE_FILE, Trace

WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
"""Where cliffs were seen (4 to 5, 8 to 9, 16 to 17 tokens: kernels change) both sides are timed."""
WINDOWS = 3
REPEATS = 3
PASSES = 3
"""Times that every curve is measured, all models in turn: what differs between passes is noise."""
PREFILL_TOKENS = 512


@dataclass(frozen=True)
class CurveOutcome:
    """Seconds of one decode [depth][width]; ``sample_s`` of the engine's sampler for one token;
    ``prompt_seconds`` of whole prompts of ``prompt_tokens`` tokens."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    sample_s: float
    prompt_tokens: tuple[int, ...]
    prompt_seconds: tuple[float, ...]
    others_cores: float | None

    @property
    def batches(self) -> BatchCurve:
        return BatchCurve(self.depths, self.widths, self.seconds)

    @property
    def prompts(self) -> BatchCurve:
        """A whole prompt, by its tokens."""
        return BatchCurve((0,), self.prompt_tokens, (self.prompt_seconds,))

    @property
    def warnings(self) -> tuple[str, ...]:
        contention = told(self.others_cores)
        return (contention,) if contention else ()


@dataclass(frozen=True)
class CurveStep(Step[CurveOutcome]):
    """The curve of ``model``; ``verifies``: logits for every token, as a target's batch has."""

    engine: Engine
    name: str
    model: Input
    trace: Trace
    args: ModelArgs
    verifies: bool
    widths: tuple[int, ...]
    turn: int = 0
    """Which of the passes this is: each is a measurement of its own."""

    kind: ClassVar[str] = "curve"
    version: ClassVar[int] = 2
    """2: prompts of the lengths that occur, not of full batches alone."""
    timed: ClassVar[bool] = True
    result_type: ClassVar[type] = CurveOutcome

    @property
    def label(self) -> str:
        what = "verification curve" if self.verifies else "draft times"
        return f"{what} {self.name} pass {self.turn + 1} ({self.engine.name})"

    def uses(self) -> Engine:
        return self.engine

    def inputs(self) -> Mapping[str, Input]:
        return {"model": self.model, "trace": self.trace}

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "verifies": self.verifies,
            "widths": list(self.widths),
            "windows": WINDOWS,
            "repeats": REPEATS,
            "pass": self.turn,
        }

    def run(self, bench: Workbench) -> CurveOutcome:
        trace = TraceFile(bench.file(self.trace, TRACE_FILE))
        texts = sorted((list(r.prompt) + list(r.tokens) for r in trace), key=len)
        depths = _depths([head.prompt_tokens + head.emitted for head in trace.heads])
        with Worker.open(self.engine, bench.supervisor, name="curve") as worker:
            path = bench.file(self.model, MODEL_FILE)
            load = model_load(self.engine, path, self.args, trace.header.context, bench.threads)
            worker.load(load)
            watch, before = Watch.start(), _cpu_s(worker)
            times = _Times(worker, texts, self.verifies)
            rows = []
            for index, depth in enumerate(depths):
                rows.append(times.row(depth, self.widths))
                bench.advance((index + 1) / (len(depths) + 1))
            sizes = _prompt_sizes([head.prompt_tokens for head in trace.heads])
            prompts = tuple(times.prompt(size) for size in sizes)
            after = _cpu_s(worker)
            taken = None if before is None or after is None else after - before
            others = watch.others_cores(taken)
        return CurveOutcome(
            tuple(depths), self.widths, tuple(rows), times.sample_s(), sizes, prompts, others
        )


def combined(passes: Sequence[CurveOutcome]) -> CurveOutcome:
    """Medians over several passes of one curve."""
    first = passes[0]
    rows = tuple(
        tuple(median(p.seconds[depth][width] for p in passes) for width in range(len(first.widths)))
        for depth in range(len(first.depths))
    )
    return CurveOutcome(
        depths=first.depths,
        widths=first.widths,
        seconds=rows,
        sample_s=median(p.sample_s for p in passes),
        prompt_tokens=first.prompt_tokens,
        prompt_seconds=tuple(
            median(p.prompt_seconds[size] for p in passes)
            for size in range(len(first.prompt_tokens))
        ),
        others_cores=max((c for p in passes if (c := p.others_cores) is not None), default=None),
    )


def _depths(lengths: Sequence[int]) -> list[int]:
    """Depths that occur: a fifth and four fifths of the way through the replies' ends."""
    ends = sorted(lengths)
    picked = {ends[round(share * (len(ends) - 1))] for share in (0.2, 0.8)}
    return sorted(max(1, depth - 1) for depth in picked)


def _prompt_sizes(lengths: Sequence[int]) -> tuple[int, ...]:
    """Prompt lengths to time: short, usual and long ones of those that occur, up to a full batch.

    A short prompt costs more a token than a long one; beyond a full batch each costs the same.
    """
    ordered = sorted(lengths)
    picked = {ordered[round(share * (len(ordered) - 1))] for share in (0.0, 0.5, 0.9)}
    return tuple(sorted({1, *(min(size, PREFILL_TOKENS) for size in picked)}))


def widths_for(lengths: Iterable[int]) -> tuple[int, ...]:
    """Widths to time for drafts of up to each of ``lengths`` tokens: a verification holds one more.

    Each of these as it is: 8 tokens at once may cost more than 9 (seen on an AVX-512 processor).
    Between them, for drafts that end early, the usual cliffs.
    """
    full = {n + 1 for n in lengths}
    return tuple(sorted(full | {w for w in WIDTHS if w <= max(full)}))


class _Times:
    """Times batches of one loaded model on windows of real text."""

    def __init__(self, worker: Worker, texts: Sequence[list[int]], verifies: bool) -> None:
        self.worker, self.verifies = worker, verifies
        self.joined = [token for text in texts for token in text]
        self.samples: list[float] = []

    def row(self, depth: int, widths: Sequence[int]) -> tuple[float, ...]:
        """Median seconds for each width at ``depth``; windows outside, widths inside, so that
        a drift of the machine falls on all widths."""
        found: dict[int, list[float]] = {width: [] for width in widths}
        for window in range(WINDOWS):
            text = self._window(depth + max(widths), window)
            for width in widths:
                timing = self.worker.time_batch(
                    text,
                    depth=depth,
                    tokens=width,
                    repeats=REPEATS,
                    all_outputs=self.verifies,
                    sample_k=40 if self.verifies else 10,
                )
                found[width].append(median(timing.decode_ns.tolist()) / 1e9)
                outputs = width if self.verifies else 1
                self.samples.append(median(timing.sample_ns.tolist()) / 1e9 / outputs)
        return tuple(median(found[width]) for width in widths)

    def prompt(self, tokens: int) -> float:
        """Median seconds of a whole prompt of ``tokens`` tokens."""
        found = []
        for window in range(WINDOWS):
            text = self._window(tokens, window)
            timing = self.worker.time_batch(
                text, depth=0, tokens=tokens, repeats=REPEATS, all_outputs=False
            )
            found.append(median(timing.decode_ns.tolist()) / 1e9)
        return float(median(found))

    def sample_s(self) -> float:
        return median(self.samples)

    def _window(self, tokens: int, index: int) -> list[int]:
        if len(self.joined) < tokens:
            raise StepError(
                f"the trace has {len(self.joined)} tokens; timing at its depth needs {tokens}",
                hint="record more or longer replies",
            )
        start = (len(self.joined) - tokens) * index // max(WINDOWS - 1, 1)
        return self.joined[start : start + tokens]


def _cpu_s(worker: Worker) -> float | None:
    from cook.engines.process.system import group_activity

    activity = group_activity(worker.pid)
    return activity.cpu_s if activity else None
