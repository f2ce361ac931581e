"""Step: the target's hidden states over a trace, which its heads draft from (mainline)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.errors import StepError
from cook.formats.arrays import Floats32
from cook.graph.cost import Cost
from cook.graph.step import JsonValue, Source, Step, Workbench
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.trace import Trace, read_trace
from cook.steps.work import computed_bytes, model_bytes
from cook.units import size

ROWS_FILE = "rows.npz"
MOST_BYTES = 8 << 30


@dataclass(frozen=True)
class RowsOutcome:
    """``tokens`` read, each with a row of ``width`` numbers."""

    tokens: int
    width: int


@dataclass(frozen=True)
class RowsStep(Step[RowsOutcome]):
    """Reads the replies of ``trace`` once more with ``target``, in whole batches, and keeps a row a
    token in f16; artifact ``rows.npz``, an array a reply. StepError beyond :data:`MOST_BYTES`, and
    for an engine that gives none."""

    engine: Engine
    target: Source
    args: ModelArgs
    trace: Trace

    kind: ClassVar[str] = "rows"
    phase: ClassVar[str] = Phase.REPLAY
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"hidden states of the target ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {**self.args.numerics(), "ubatch": self.args.ubatch}

    def cost(self) -> Cost | None:
        held = model_bytes(self.target)
        if held is None:
            return None
        tokens = sum(self.trace.prompt_tokens()) + self.trace.tokens
        return Cost((held,), computed_bytes=tokens * computed_bytes(self.target))

    def run(self, bench: Workbench) -> RowsOutcome:
        trace = read_trace(bench, self.trace)
        arrays: dict[str, npt.NDArray[np.float16]] = {}
        tokens = width = held = 0
        load = model_load(
            self.engine, model_path(bench, self.target), self.args, trace.header.context
        )
        with bench.workers.loaded(self.engine, load) as (worker, _):
            for index, reply in enumerate(trace):
                found = worker.rows(np.concatenate([reply.prompt, reply.tokens[:-1]]))
                rows = found.astype(np.float16)
                if not np.isfinite(rows).all():
                    raise StepError(f"{self.label}: they hold numbers beyond f16")
                arrays[str(index)] = rows
                held, width, tokens = held + rows.nbytes, rows.shape[1], tokens + len(rows)
                if held > MOST_BYTES:
                    raise StepError(
                        f"{self.label}: more than {size(MOST_BYTES)} for these prompts",
                        hint="fewer prompts (`score.limit`), or `score: {method: live}`",
                    )
                bench.advance((index + 1) / len(trace))
        np.savez(bench.directory / ROWS_FILE, allow_pickle=False, **arrays)
        return RowsOutcome(tokens, width)


def read_rows(bench: Workbench, step: RowsStep) -> Iterator[Floats32]:
    """Of every reply, in the trace's order: [prompt + reply - 1, width]."""
    with np.load(bench.file(step, ROWS_FILE), allow_pickle=False) as arrays:
        for index in range(len(arrays.files)):
            yield arrays[str(index)].astype(np.float32)
