"""Step: the target's hidden states over a trace, which its heads draft from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from cook.engines.base import Engine, ModelArgs
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.arrays import Floats32
from cook.formats.gguf import header_if_there
from cook.formats.trace_file import Reply
from cook.graph.step import Cost, JsonValue, Source, Step, Workbench
from cook.steps.trace import Trace, read_trace
from cook.steps.work import Phase, computed_bytes, model_path, trunk_bytes
from cook.units import size

ROWS_FILE = "rows.npz"
ROW_BYTES, MOST_BYTES = 2, 8 << 30


@dataclass(frozen=True)
class RowsOutcome:
    """``tokens`` read, each with a row of ``width`` numbers."""

    tokens: int
    width: int


@dataclass(frozen=True)
class RowsStep(Step[RowsOutcome]):
    """Reads the replies of ``trace`` once more with ``target``, and keeps a row a token in f16;
    artifact ``rows.npz``, an array a reply. StepError beyond :data:`MOST_BYTES`, and for an engine
    that gives none."""

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
        held = trunk_bytes(self.target)
        if held is None:
            return None
        tokens = sum(self.trace.prompt_tokens()) + self.trace.tokens
        return Cost((held,), computed_bytes=tokens * computed_bytes(self.target))

    def predicted_bytes(self) -> int | None:
        file = header_if_there(self.target.path)
        width = file.integer(f"{file.architecture}.embedding_length") if file is not None else None
        tokens = sum(self.trace.prompt_tokens()) + self.trace.tokens
        return round(ROW_BYTES * tokens * width) if width else None

    def load(self, bench: Workbench, context: int) -> ModelLoad:
        """The target as it gives its rows."""
        model = (self.engine, model_path(bench, self.target), self.args, context)
        return model_load(*model, gives_rows=True)

    def run(self, bench: Workbench) -> RowsOutcome:
        trace, done = read_trace(bench, self.trace), 0
        tokens = sum(head.prompt_tokens + head.tokens - 1 for head in trace.heads)
        load = self.load(bench, trace.header.context)
        with (
            bench.workers.loaded(self.engine, load) as (worker, _),
            ZipFile(bench.directory / ROWS_FILE, "w") as file,  # as np.savez, an array at a time
        ):
            for index, reply in enumerate(trace):
                rows = rows_of(worker, reply)
                width = rows.shape[1]
                if (needed := ROW_BYTES * tokens * width) > MOST_BYTES:
                    raise StepError(
                        f"{self.label}: {size(needed)} for these prompts, and at most "
                        f"{size(MOST_BYTES)} are kept",
                        hint="fewer prompts (`score.limit`), or `score: {method: live}`",
                    )
                with file.open(f"{index}.npy", "w", force_zip64=True) as array:
                    np.lib.format.write_array(array, rows, allow_pickle=False)
                done += len(rows)
                bench.advance(done / tokens)
        return RowsOutcome(tokens, width)


def rows_of(worker: Worker, reply: Reply) -> npt.NDArray[np.float16]:
    """The rows of ``reply`` as they are kept. StepError where they do not fit f16."""
    rows = worker.rows(reply.prompt, reply.tokens).astype(np.float16)
    if not np.isfinite(rows).all():
        raise StepError("the target's hidden states hold numbers beyond f16")
    return rows


def read_rows(bench: Workbench, step: RowsStep) -> Iterator[Floats32]:
    """Of every reply, in the trace's order: [prompt + reply - 1, width]."""
    with np.load(bench.file(step, ROWS_FILE), allow_pickle=False) as arrays:
        for index in range(len(arrays.files)):
            yield arrays[str(index)].astype(np.float32)
