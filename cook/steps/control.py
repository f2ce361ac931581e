"""Step: the no-draft control of losslessness: what batch width alone does to the target.

The target reads its own trace again, prompts in whole batches and replies in batches as wide as a
verification, with no draft loaded; where the trace was recorded in wide batches itself, a token at
a time, too.
Where its log-probabilities differ from those of single decoding, only kernels differ
(docs/internals/scoring.md#same-output-as-without-a-draft). Twice the 99th percentile of that
difference is the line below which a changed token is a near tie, measured on this engine instead
of assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.arrays import Floats32
from cook.formats.trace_file import Reply, TraceFile
from cook.graph.cost import Cost
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.record.outcomes import ControlOutcome
from cook.steps.phase import Phase
from cook.steps.trace import Trace, read_trace
from cook.steps.work import computed_bytes, read_bytes, wide

REPLIES = 12
"""Most replies that are read again, those with the shortest prompts: these cost, and show
nothing."""
ENOUGH = 1_000
"""Tokens of replies that show a 99th percentile: no further prompt is read for more."""
REPLY_S = 900.0
"""Seconds that one reply may take."""


@dataclass(frozen=True)
class ControlStep(Step[ControlOutcome]):
    """``target`` over ``trace`` again, without a draft, ``width`` tokens at once."""

    engine: Engine
    target: Source
    args: ModelArgs
    trace: Trace
    width: int

    kind: ClassVar[str] = "control"
    phase: ClassVar[str] = Phase.CHECKS
    version: ClassVar[int] = 4
    """2: prompts in whole batches, and no more replies than it takes. 3: all widths together.
    4: one, the served draft's."""
    optional: ClassVar[bool] = True
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"no-draft control at width {self.width} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "width": self.width,
            "replies": REPLIES,
            "enough": ENOUGH,
            **self.args.numerics(),
        }

    def cost(self) -> Cost:
        tokens = min(float(ENOUGH), self.trace.tokens)
        replies = max(tokens / max(self.trace.max_tokens, 1), 1.0)
        prompts = sum(sorted(self.trace.prompt_tokens())[: math.ceil(replies)])
        singly = 0.0 if self.trace.batch_width == 1 else tokens
        batches = tokens / self.width
        return Cost(
            read_bytes=(batches * wide(self.width + 1) + singly) * read_bytes(self.target),
            decodes=batches + singly,
            computed_bytes=prompts * computed_bytes(self.target),
            memory_bytes=self.target.size_bytes,
        )

    def run(self, bench: Workbench) -> ControlOutcome:
        trace = read_trace(bench, self.trace)
        load = model_load(self.engine, self.target.path, self.args, trace.header.context)
        found = _Differences(trace, self.width)
        chosen = _chosen(trace)
        with bench.workers.loaded(self.engine, load, REPLY_S) as (worker, _):
            for index, reply in enumerate(trace):
                if index in chosen:
                    found.add(worker, reply)
                bench.advance((index + 1) / len(trace))
        if not found.told:
            raise StepError(f"{self.label}: the trace has no log-probabilities to compare with")
        return found.outcome()


class _Differences:
    """Absolute differences of log-probabilities at ``width``, and margins of what flipped."""

    def __init__(self, trace: TraceFile, width: int) -> None:
        self.width = width
        self.single = trace.header.batch_width == 1
        self.greedy = not trace.header.sampler.temperature
        self.found: list[Floats32] = []
        self.margins: list[Floats32] = []

    def add(self, worker: Worker, reply: Reply) -> None:
        """Read ``reply`` again."""
        count = reply.head.emitted
        said, known, ahead = reply.tokens[:count], reply.known[:count], len(reply.prompt) - 1
        wide = worker.replay(reply.prompt, said, width=self.width, ahead=ahead)
        if self.single:
            logp, margin, likeliest = reply.logp[:count], reply.margin[:count], said
        else:
            alone = worker.replay(reply.prompt, said, width=1, ahead=ahead)
            logp, margin, likeliest = alone.logq, alone.margin, alone.argmax
        self.found.append(np.abs(wide.logq - logp)[known])
        if self.greedy:
            self.margins.append(margin[known & (wide.argmax != likeliest)])

    @property
    def told(self) -> bool:
        """Whether there is anything to compare with."""
        every = np.concatenate(self.found)
        return bool(len(every) and np.isfinite(every).all())

    def outcome(self) -> ControlOutcome:
        every = np.concatenate(self.found)
        flips = np.concatenate(self.margins) if self.margins else np.zeros(0)
        return ControlOutcome(
            width=self.width,
            positions=len(every),
            flips=len(flips),
            p50=float(np.quantile(every, 0.5)),
            p99=float(np.quantile(every, 0.99)),
            largest=float(every.max()),
            largest_flip=float(flips.max()) if len(flips) else None,
        )


def _chosen(trace: TraceFile) -> set[int]:
    """The replies with the shortest prompts, as many as it takes."""
    order = sorted(range(len(trace)), key=lambda index: trace.heads[index].prompt_tokens)
    chosen: set[int] = set()
    for index in order[:REPLIES]:
        chosen.add(index)
        if sum(trace.heads[i].emitted for i in chosen) >= ENOUGH:
            break
    return chosen
