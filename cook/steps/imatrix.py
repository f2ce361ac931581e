"""Steps: collect the importance matrix, and see that every expert was covered; that of a head; what
the target wrote, as a text to collect it from.

llama-imatrix never runs a head (mainline). The target reads the calibration text, and the head
reads it after it, each token with the target's hidden state before it: what goes into the head's
matrices is added up as llama-imatrix adds up what goes into a model's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cook.engines import tool_runs
from cook.engines.base import Engine, ModelArgs
from cook.engines.process.system import peak_rss_bytes
from cook.engines.worker.loading import head_load, model_load
from cook.engines.worker.messages import ModelLoad
from cook.errors import StepError
from cook.formats.gguf import TensorInfo, header_if_there, read_gguf
from cook.formats.gguf_writer import write_copy
from cook.formats.heads import head_alone, head_of
from cook.formats.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    coverage,
    entry_for,
    read_imatrix,
    with_experts,
    write_gguf,
)
from cook.formats.quant_types import Flavour
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.recipe.rules import quantizable
from cook.steps.trace import Trace, read_trace
from cook.steps.work import BYTES_A_TOKEN, CHUNK_TOKENS, Phase, head_bytes, text_cost
from cook.trace.compatible import require_draft

_SEPARATOR = "\n\n"
_PARSE_SPECIAL = "--parse-special"
CORPUS_FILE = "corpus.txt"
"""Of a step that makes the corpus."""
Otherwise = Literal["extend", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class ImatrixOutcome(tool_runs.ImatrixResult):
    """``experts_covered`` of ``experts_total`` (expert, tensor) pairs have data, by the
    engine's own rule for storing partial entries. ``skipped`` are weights without any entry, so
    that types which need data would fail on them. ``chunks`` is the number really evaluated.
    """

    entries: int
    experts_total: int
    experts_covered: int
    skipped: tuple[str, ...]

    @property
    def expert_coverage(self) -> float | None:
        """Share of experts with data; None for a model without experts."""
        return self.experts_covered / self.experts_total if self.experts_total else None


@dataclass(frozen=True)
class ImatrixStep(Step[ImatrixOutcome]):
    """``engine`` reads ``model`` over ``corpus``; artifact ``imatrix.gguf`` or ``imatrix.dat``."""

    engine: Engine
    model: Source
    corpus: Input
    context: int
    chunks: int | None
    process_output: bool
    minimum_coverage: float
    otherwise: Otherwise
    args: tuple[str, ...] = ()

    kind: ClassVar[str] = "imatrix"
    phase: ClassVar[str] = Phase.IMATRIX

    @property
    def label(self) -> str:
        return f"imatrix ({self.engine.name})"

    @property
    def file_name(self) -> str:
        """ik reads only the legacy format; mainline's default is GGUF."""
        return "imatrix.dat" if self.engine.flavour is Flavour.IK_LLAMA_CPP else "imatrix.gguf"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "context": self.context,
            "chunks": self.chunks,
            "process_output": self.process_output,
            "coverage": [self.minimum_coverage, self.otherwise],
            "args": list(self.args),
        }

    def cost(self) -> Cost | None:
        return text_cost(self.model, self.corpus, self.context, self.chunks)

    def run(self, bench: Workbench) -> ImatrixOutcome:
        chunks = self.chunks
        warnings: list[str] = []
        while True:
            outcome = self._collect(bench, chunks)
            share = outcome.expert_coverage
            if (share is None or share >= self.minimum_coverage) and not outcome.skipped:
                break
            seen = outcome.expert_coverage
            short = f"{outcome.experts_covered} of {outcome.experts_total} experts have data"
            if seen is not None:
                short += f" ({seen:.1%}, asked for {self.minimum_coverage:.0%})"
            if outcome.skipped:
                short += f"; {len(outcome.skipped)} tensors have no data at all, e.g. "
                short += outcome.skipped[0]
            if self.otherwise == "fail":
                raise StepError(
                    f"{self.label}: {short}",
                    hint="give a longer or broader imatrix.corpus, or lower imatrix.coverage",
                )
            if self.otherwise == "warn":
                warnings.append(short)
                break
            if chunks is None or outcome.chunks < chunks:
                warnings.append(f"{short}; the corpus has no more text")
                break
            chunks *= 2
            warnings.append(f"{short}; extended to {chunks} chunks")
        return replace(outcome, warnings=(*outcome.warnings, *warnings))

    def _collect(self, bench: Workbench, chunks: int | None) -> ImatrixOutcome:
        output = bench.directory / self.file_name
        output.unlink(missing_ok=True)
        job = tool_runs.TextJob(
            model=self.model.path,
            corpus=bench.file(self.corpus, CORPUS_FILE),
            context=self.context,
            chunks=chunks,
            threads=bench.threads,
            args=self.args,
        )
        result = tool_runs.imatrix(
            self.engine, job, output, bench.supervisor, process_output=self.process_output
        )
        file = read_gguf(self.model.path)
        matrix = with_experts(read_imatrix(output), file.tensors)
        flavour, head = self.engine.flavour, head_of(file)
        # What the engine left out of the file is in no entry, only among the model's tensors; it
        # does not run a head, which has an imatrix of its own.
        apart = {t.name for t in head.tensors_of(file)} if head is not None else set()
        absent = [
            t
            for t in file.tensors
            if t.name.startswith("blk.")
            and t.name not in apart
            and quantizable(t.name, t.shape, t.type_name, flavour)
            and entry_for(matrix, t.name, flavour) is None
        ]
        total, covered = _experts(matrix, absent, flavour)
        return ImatrixOutcome(
            **vars(result),
            entries=len(matrix.entries),
            experts_total=total,
            experts_covered=covered,
            skipped=tuple(t.name for t in absent),
        )


def _experts(matrix: Imatrix, absent: Sequence[TensorInfo], flavour: Flavour) -> tuple[int, int]:
    """(expert, tensor) pairs in all, and those with data; ``absent`` have no entry."""
    experts = [entry for entry in coverage(matrix) if entry.experts > 1]
    lost = sum(t.shape[2] for t in absent if len(t.shape) > 2)
    total = sum(entry.experts for entry in experts) + lost
    return total, sum(entry.usable(flavour) for entry in experts)


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
        self, found: Mapping[str, ImatrixEntry], tensors: Sequence[TensorInfo], chunks: int
    ) -> ImatrixOutcome:
        matrices = (t for t in tensors if len(t.shape) > 1 and t.name.startswith("blk."))
        multiplied = (t for t in matrices if not any(part in t.name for part in _WITHOUT_ENTRY))
        absent = [t for t in multiplied if t.name not in found]
        matrix = Imatrix(found, (), chunks, self.context, "gguf")
        total, covered = _experts(matrix, absent, self.engine.flavour)
        return ImatrixOutcome(
            chunks=chunks,
            perplexity=None,
            perplexity_error=None,
            seconds=0.0,
            peak_rss_bytes=0,
            command=(),
            entries=len(found),
            experts_total=total,
            experts_covered=covered,
            skipped=tuple(t.name for t in absent),
        )


@dataclass(frozen=True)
class TraceCorpusOutcome:
    """``tokens`` of prompts and ``replies``."""

    replies: int
    tokens: int


@dataclass(frozen=True)
class TraceCorpusStep(Step[TraceCorpusOutcome]):
    """Prompts and replies of ``trace`` as text; artifact ``corpus.txt``.

    ``model`` is the one whose imatrix is wanted: it has the target's tokens. Prompts stay in,
    because a draft reads them as well. Special tokens (of a chat template) stay where the
    engine's imatrix tool has an option to parse them (:func:`corpus_args`), else they are left out:
    spelt out they would be text that never occurs.
    """

    engine: Engine
    model: Source
    trace: Trace

    kind: ClassVar[str] = "trace-corpus"
    phase: ClassVar[str] = Phase.IMATRIX
    in_worker: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"calibration text of the target ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {"special": bool(corpus_args(self.engine)), "separator": _SEPARATOR}

    def cost(self) -> Cost:
        return Cost((float(self.model.size_bytes),))

    def predicted_bytes(self) -> int:
        return round(self.trace.tokens) * BYTES_A_TOKEN

    def run(self, bench: Workbench) -> TraceCorpusOutcome:
        trace = read_trace(bench, self.trace)
        require_draft(trace, self.model.path, self.engine.flavour)
        special = bool(corpus_args(self.engine))
        tokens, texts = 0, []
        load = ModelLoad(self.model.path, vocabulary_only=True)
        with bench.workers.loaded(self.engine, load) as (worker, info):
            ends = info.eog | ({info.bos} if info.add_bos and info.bos is not None else set())
            for index, reply in enumerate(trace):
                whole = [*reply.prompt.tolist(), *reply.tokens[: reply.head.emitted].tolist()]
                # the imatrix tool begins each chunk on its own, and a reply's end is no text
                first = 1 if whole[0] in ends else 0
                last = len(whole) - (1 if whole[-1] in ends else 0)
                texts.append(worker.detokenize(whole[first:last], special=special))
                tokens += last - first
                bench.advance((index + 1) / len(trace))
        text = _SEPARATOR.join(texts)
        if not text.strip():
            raise StepError(f"{self.label}: the trace has no text")
        (bench.directory / CORPUS_FILE).write_bytes(text.encode())
        return TraceCorpusOutcome(len(texts), tokens)


def corpus_args(engine: Engine) -> tuple[str, ...]:
    """Flags of ``llama-imatrix`` for such a text: special tokens are parsed where it can."""
    known = _PARSE_SPECIAL in engine.facts.flags.get("imatrix", ())
    return (_PARSE_SPECIAL,) if known else ()
