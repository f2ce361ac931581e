"""Step: the importance matrix of a head, which llama-imatrix never runs (mainline).

The target reads the calibration text, and the head reads it after it, each token with the target's
hidden state before it: what goes into the head's matrices is added up as llama-imatrix adds up what
goes into a model's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs
from cook.engines.process.system import peak_rss_bytes
from cook.engines.worker.loading import head_load, model_load
from cook.errors import StepError
from cook.formats.gguf import TensorInfo, header_if_there, read_gguf
from cook.formats.gguf_writer import write_copy
from cook.formats.heads import head_alone, head_of
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, coverage, read_imatrix, write_gguf
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.steps.imatrix import CORPUS_FILE, ImatrixOutcome, ImatrixStep, Otherwise
from cook.steps.work import CHUNK_TOKENS, Phase, head_bytes, text_cost

_WITHOUT_ENTRY = (".embed_tokens.", "ffn_gate_inp", "_norm", "enorm", "hnorm")
"""In the names of a block's tensors that are not multiplied, or never quantized."""


@dataclass(frozen=True)
class HeadImatrixStep(Step[ImatrixOutcome]):
    """Of the head in ``model``, on the hidden states of ``target``; artifact ``imatrix.gguf``, with
    the entries of ``trunk`` where that is given. ``special``: the text spells special tokens."""

    engine: Engine
    model: Source
    target: Source
    target_args: ModelArgs
    corpus: Input
    context: int
    chunks: int | None
    process_output: bool
    minimum_coverage: float
    otherwise: Otherwise
    special: bool = False
    trunk: ImatrixStep | None = None

    kind: ClassVar[str] = "head-imatrix"
    phase: ClassVar[str] = Phase.IMATRIX
    in_worker: ClassVar[bool] = True
    file_name: ClassVar[str] = "imatrix.gguf"

    @property
    def label(self) -> str:
        return f"imatrix of the head ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            **self.target_args.numerics(),
            "ubatch": self.target_args.ubatch,
            "context": self.context,
            "chunks": self.chunks,
            "process_output": self.process_output,
            "coverage": [self.minimum_coverage, self.otherwise],
            "special": self.special,
        }

    def cost(self) -> Cost | None:
        read = text_cost(self.target, self.corpus, self.context, self.chunks)
        file = header_if_there(self.model.path)
        if read is None or file is None or head_of(file) is None:
            return read
        held = head_alone(file).tensor_bytes or 0
        tokens = read.decodes * CHUNK_TOKENS
        return replace(
            read,
            loads=(*read.loads, float(held)),
            computed_bytes=read.computed_bytes + tokens * head_bytes(self.model),
        )

    def run(self, bench: Workbench) -> ImatrixOutcome:
        started, temporary = time.monotonic(), bench.directory / "head.gguf"
        whole = read_gguf(self.model.path)
        head, path = head_alone(whole), self.model.path
        if len(head.tensors) < len(whole.tensors):
            path = write_copy(head, temporary)
        args = replace(self.target_args, cache_type_k=None, cache_type_v=None, extra=())
        target = model_load(self.engine, self.target.path, self.target_args, self.context)
        own = replace(head_load(self.engine, path, args, self.context), collects=True)
        warnings: list[str] = []
        with (
            bench.workers.loaded(self.engine, target) as (reader, info),
            bench.workers.loaded(self.engine, own, place="imatrix of a head") as (worker, _),
        ):
            text = bench.file(self.corpus, CORPUS_FILE).read_text("utf-8", errors="replace")
            tokens = reader.tokenize(text, parse_special=self.special)
            most, limit = len(tokens) // self.context, self.chunks
            if not most:
                raise StepError(
                    f"{self.label}: the text has {len(tokens)} tokens, and a chunk {self.context}",
                    hint="a longer `imatrix.corpus`, or a smaller `imatrix.context`",
                )
            chunks = 0
            while True:
                wanted = min(most, limit or most)
                for chunk in range(chunks, wanted):
                    part = list(tokens[chunk * self.context : (chunk + 1) * self.context])
                    if info.add_bos and info.bos is not None:
                        part[0] = info.bos  # as llama-imatrix begins a chunk
                    worker.collect(part, reader.rows(part, [0]), output=self.process_output)
                    bench.advance((chunk + 1) / wanted)
                chunks = wanted
                found = worker.importance()
                outcome = self._outcome(found, head.tensors, chunks)
                share = outcome.expert_coverage
                if share is None or share >= self.minimum_coverage:
                    break
                short = f"{share:.1%} of the head's experts have data"
                if self.otherwise == "fail":
                    raise StepError(
                        f"{self.label}: {short}, asked for {self.minimum_coverage:.0%}",
                        hint="a longer or broader `imatrix.corpus`, or a lower `imatrix.coverage`",
                    )
                if self.otherwise == "warn" or chunks == most:
                    more = "" if self.otherwise == "warn" else "; the corpus has no more text"
                    warnings.append(short + more)
                    break
                limit = 2 * chunks
                warnings.append(f"{short}; extended to {limit} chunks")
            peak = peak_rss_bytes(worker.pid)
        temporary.unlink(missing_ok=True)
        names, entries = [self.corpus_name], dict(found)
        if self.trunk is not None:
            trunk = read_imatrix(bench.file(self.trunk, self.trunk.file_name))
            entries = {**trunk.entries, **{n: e for n, e in found.items() if n.startswith("blk.")}}
            names = list(trunk.datasets) or names
        matrix = Imatrix(entries, tuple(names), chunks, self.context, "gguf")
        write_gguf(matrix, bench.directory / self.file_name)
        return replace(
            outcome,
            entries=len(entries),
            seconds=time.monotonic() - started,
            peak_rss_bytes=peak,
            warnings=tuple(warnings),
        )

    @property
    def corpus_name(self) -> str:
        """What files say that it was collected on."""
        return self.corpus.path.name if isinstance(self.corpus, Source) else CORPUS_FILE

    def _outcome(
        self, found: Mapping[str, ImatrixEntry], tensors: tuple[TensorInfo, ...], chunks: int
    ) -> ImatrixOutcome:
        matrix = Imatrix(found, (), chunks, self.context, "gguf")
        experts = [entry for entry in coverage(matrix) if entry.experts > 1]
        absent = [t for t in _multiplied(tensors) if t.name not in found]
        lost = sum(t.shape[2] for t in absent if len(t.shape) > 2)
        return ImatrixOutcome(
            chunks=chunks,
            perplexity=None,
            perplexity_error=None,
            seconds=0.0,
            peak_rss_bytes=0,
            command=(),
            entries=len(found),
            experts_total=sum(entry.experts for entry in experts) + lost,
            experts_covered=sum(entry.usable(self.engine.flavour) for entry in experts),
            skipped=tuple(t.name for t in absent),
        )


def _multiplied(tensors: tuple[TensorInfo, ...]) -> Iterator[TensorInfo]:
    """The matrices of a head's block that get an entry each."""
    for tensor in tensors:
        matrix = len(tensor.shape) > 1 and tensor.name.startswith("blk.")
        if matrix and not any(part in tensor.name for part in _WITHOUT_ENTRY):
            yield tensor
