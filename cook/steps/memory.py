"""Step: the memory one model takes when served: weights, KV cache, compute buffers.

The engine's own allocation lines are read from a server's start-up log, so whatever the
placement arguments do (offload, KV types, flash attention) is in the figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.engines.tool_output import parse_buffers
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.work import model_bytes

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
