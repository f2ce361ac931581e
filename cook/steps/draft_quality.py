"""Steps: perplexity of a model, its divergence from the source's logits, and the memory it takes.

Memory is what the engine's own allocation lines say in a server's start-up log, so whatever the
placement arguments do (offload, KV types, flash attention) is in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from cook.engines import tool_runs
from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.tool_output import parse_buffers
from cook.errors import StepError
from cook.formats.kld_base import base_bytes
from cook.formats.quant_types import Flavour
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench, decode
from cook.steps.work import Phase, model_bytes, model_path, text_cost

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


LOG_BYTES = 16 << 20


@dataclass(frozen=True)
class MemoryOutcome:
    """Bytes by use, as the engine allocated them, all devices together; ``device_bytes`` of them
    are not in the host's memory."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    command: tuple[str, ...]
    device_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


@dataclass(frozen=True)
class MemoryStep(Step[MemoryOutcome]):
    """What ``model`` takes at ``context`` tokens with ``args``."""

    engine: Engine
    name: str
    model: Input
    args: ModelArgs
    context: int

    kind: ClassVar[str] = "memory"
    phase: ClassVar[str] = Phase.QUALITY
    version: ClassVar[int] = 2
    """2: bytes on devices apart."""

    @property
    def label(self) -> str:
        return f"memory {self.name} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {"args": asdict(self.args), "context": self.context}

    def cost(self) -> Cost | None:
        size = model_bytes(self.model)
        return Cost((size,)) if size is not None else None

    def run(self, bench: Workbench) -> MemoryOutcome:
        args = self.args
        if self.engine.flavour is Flavour.LLAMA_CPP:
            # Mainline prints its buffers at trace level only (docs/internals/engines.md#logs).
            args = replace(args, extra=(*args.extra, "-lv", "4"))
        job = ServerJob(
            target=model_path(bench, self.model), target_args=args, context=self.context
        )
        with Server(self.engine, job, bench.supervisor) as server:
            server.complete("x", n_predict=1, temperature=0.0, seed=1)
        with server.log.open("rb") as stream:
            sizes, device_bytes = parse_buffers(stream.read(LOG_BYTES))
        if not sizes.get("model"):
            raise StepError(f"{self.label}: the engine printed no buffer sizes", log=server.log)
        return MemoryOutcome(
            weights_bytes=sizes.get("model", 0),
            kv_bytes=sizes.get("KV", 0) + sizes.get("RS", 0),
            compute_bytes=sizes.get("compute", 0) + sizes.get("output", 0),
            command=server.command,
            device_bytes=device_bytes,
        )
