"""Steps: perplexity of a model, and its divergence from the source's logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cook.engines import tool_runs
from cook.engines.base import Engine
from cook.formats.kld_base import base_bytes
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Source, Step, Workbench, decode
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.work import text_cost

BASE_FILE = "base.kld"


@dataclass(frozen=True)
class Evaluation:
    """Perplexity with its standard error over ``chunks`` chunks of ``context`` tokens.

    ``divergence`` is there when the model was compared with the source's logits.
    """

    perplexity: float
    error: float
    chunks: int
    context: int
    command: tuple[str, ...]
    divergence: tool_runs.DivergenceResult | None = None


@dataclass(frozen=True)
class PerplexityStep(Step[Evaluation]):
    """Perplexity of ``model`` on ``corpus``.

    With ``vocabulary_size`` given, the logits of every position are kept as ``base.kld``, the
    reference for :class:`DivergenceStep`. Threads stay out of the key: they change the order
    of no sum in these kernels.
    """

    engine: Engine
    name: str
    model: Input
    corpus: Source
    context: int
    chunks: int | None
    vocabulary_size: int | None = None
    args: tuple[str, ...] = ()

    kind: ClassVar[str] = "perplexity"
    phase: ClassVar[str] = Phase.QUALITY

    @property
    def label(self) -> str:
        what = "reference logits" if self.vocabulary_size else "perplexity"
        return f"{what} {self.name} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "context": self.context,
            "chunks": self.chunks,
            "save_base": self.vocabulary_size is not None,
            "args": list(self.args),
        }

    def cost(self) -> Cost | None:
        return text_cost(self.model, self.corpus, self.context, self.chunks)

    def predicted_bytes(self) -> int | None:
        if self.vocabulary_size is None:
            return 0
        if self.chunks is None:
            return None
        return base_bytes(self.context, self.vocabulary_size, self.chunks)

    def run(self, bench: Workbench) -> Evaluation:
        job = tool_runs.TextJob(
            model=model_path(bench, self.model),
            corpus=self.corpus.path,
            context=self.context,
            chunks=self.chunks,
            threads=bench.threads,
            args=self.args,
        )
        base = bench.directory / BASE_FILE if self.vocabulary_size else None
        result = tool_runs.perplexity(self.engine, job, bench.supervisor, base)
        return Evaluation(
            result.perplexity, result.error, result.chunks, self.context, result.command
        )


@dataclass(frozen=True)
class DivergenceStep(Step[Evaluation]):
    """Perplexity of ``model`` and its KL divergence from the logits kept by ``base``."""

    engine: Engine
    name: str
    model: Input
    base: PerplexityStep
    args: tuple[str, ...] = ()

    kind: ClassVar[str] = "divergence"
    phase: ClassVar[str] = Phase.QUALITY

    @property
    def label(self) -> str:
        return f"perplexity and KLD {self.name} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {"context": self.base.context, "args": list(self.args)}

    def cost(self) -> Cost | None:
        return text_cost(self.model, self.base.corpus, self.base.context, self.base.chunks)

    def run(self, bench: Workbench) -> Evaluation:
        result = tool_runs.divergence(
            self.engine,
            model_path(bench, self.model),
            bench.file(self.base, BASE_FILE),
            bench.supervisor,
            threads=bench.threads,
            args=self.args,
        )
        base = decode(self.base, bench.artifact(self.base))
        return Evaluation(
            perplexity=result.perplexity,
            error=result.perplexity_error,
            chunks=base.chunks,
            context=base.context,
            command=result.command,
            divergence=result,
        )
