"""Step: collect the importance matrix, and see that every expert was covered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cook.engines import tool_runs
from cook.engines.base import Engine
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import absent_entries, coverage, read_imatrix, with_experts
from cook.formats.quant_types import Flavour
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Source, Step, Workbench
from cook.steps.phase import Phase
from cook.steps.work import text_cost

CORPUS_FILE = "corpus.txt"
"""Of a step that makes the corpus."""
Otherwise = Literal["extend", "warn", "fail"]


@dataclass(frozen=True)
class ImatrixOutcome:
    """``experts_covered`` of ``experts_total`` (expert, tensor) pairs have data, by the
    engine's own rule for storing partial entries. ``skipped`` are weights without any entry, so
    that types which need data would fail on them. ``chunks`` is the number really evaluated.
    """

    chunks: int
    perplexity: float | None
    perplexity_error: float | None
    entries: int
    experts_total: int
    experts_covered: int
    skipped: tuple[str, ...]
    seconds: float
    peak_rss_bytes: int
    command: tuple[str, ...]
    warnings: tuple[str, ...]

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
            short = outcome.expert_coverage is not None and (
                outcome.expert_coverage < self.minimum_coverage
            )
            if not short and not outcome.skipped:
                break
            coverage = self._coverage(outcome)
            if self.otherwise == "fail":
                raise StepError(
                    f"{self.label}: {coverage}",
                    hint="give a longer or broader imatrix.corpus, or lower imatrix.coverage",
                )
            if self.otherwise == "extend" and chunks is not None and outcome.chunks >= chunks:
                warnings.append(f"{coverage}; extended to {chunks * 2} chunks")
                chunks *= 2
                continue
            corpus_ended = self.otherwise == "extend"
            warnings.append(coverage + ("; the corpus has no more text" if corpus_ended else ""))
            break
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
        weights = [t for t in tensors if t.name.startswith("blk.") and len(t.shape) > 1]
        wanted = [t for t in weights if "_norm" not in t.name and "ffn_gate_inp" not in t.name]
        absent = frozenset(absent_entries(matrix, wanted, flavour))
        lost = sum(t.shape[2] for t in wanted if t.name in absent and len(t.shape) > 2)
        return ImatrixOutcome(
            chunks=result.chunks,
            perplexity=result.perplexity,
            perplexity_error=result.perplexity_error,
            entries=len(matrix.entries),
            experts_total=sum(entry.experts for entry in experts) + lost,
            experts_covered=sum(entry.usable(flavour) for entry in experts),
            skipped=tuple(t.name for t in wanted if t.name in absent),
            seconds=result.seconds,
            peak_rss_bytes=result.peak_rss_bytes,
            command=result.command,
            warnings=result.warnings,
        )

    def _coverage(self, outcome: ImatrixOutcome) -> str:
        share = outcome.expert_coverage
        text = f"{outcome.experts_covered} of {outcome.experts_total} experts have data"
        if share is not None:
            text += f" ({share:.1%}, asked for {self.minimum_coverage:.0%})"
        if outcome.skipped:
            text += f"; {len(outcome.skipped)} tensors have no data at all, e.g. "
            text += outcome.skipped[0]
        return text
