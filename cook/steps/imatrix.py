"""Steps: collect the importance matrix, and see that every expert was covered; what the target
wrote, as a text to collect it from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cook.engines import tool_runs
from cook.engines.base import Engine
from cook.engines.worker.messages import ModelLoad
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import coverage, entry_for, read_imatrix, with_experts
from cook.formats.quant_types import Flavour
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.steps.trace import Trace, read_trace
from cook.steps.work import BYTES_A_TOKEN, Phase, text_cost
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
        tensors = read_gguf(self.model.path).tensors
        matrix = with_experts(read_imatrix(output), tensors)
        flavour = self.engine.flavour
        experts = [entry for entry in coverage(matrix) if entry.experts > 1]
        # What the engine left out of the file is in no entry, only among the model's tensors.
        absent = [
            t
            for t in tensors
            if t.name.startswith("blk.")
            and len(t.shape) > 1
            and "_norm" not in t.name
            and "ffn_gate_inp" not in t.name
            and entry_for(matrix, t.name, flavour) is None
        ]
        lost = sum(t.shape[2] for t in absent if len(t.shape) > 2)
        return ImatrixOutcome(
            **vars(result),
            entries=len(matrix.entries),
            experts_total=sum(entry.experts for entry in experts) + lost,
            experts_covered=sum(entry.usable(flavour) for entry in experts),
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
