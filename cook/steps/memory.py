"""Step: the memory one model takes when served: weights, KV cache, compute buffers.

The engine's own allocation lines are read from a server's start-up log, so whatever the
placement arguments do (offload, KV types, flash attention) is in the figure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from cook.engines.base import Engine, ModelArgs, ServerJob
from cook.engines.server import Server
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.steps.made_model import model_path
from cook.steps.phase import Phase
from cook.steps.work import model_bytes

_BUFFER = re.compile(
    rb"(?P<device>[\w\[\]:.\- ]*?)\s*"
    rb"(?P<kind>model|KV|compute|output|RS)?\s*buffer size\s*=\s*(?P<mib>\d+(?:\.\d+)?) MiB"
)
_HOST = re.compile(rb"^(CPU|AMX|BLAS|ACCEL)|_?Host$")
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


def parse_buffers(log: bytes) -> tuple[dict[str, int], int]:
    """Bytes by kind (model, KV, compute, output, RS) in an engine's start-up log, and how many of
    all are on devices: what is called CPU something or something Host is the host's memory."""
    sizes: dict[str, float] = {}
    device = 0.0
    for line in log.splitlines():
        if match := _BUFFER.search(line):
            kind = (match["kind"] or b"").decode()
            if not kind and b"load_tensors" in line:
                kind = "model"  # ik's "llm_load_tensors: CPU buffer size"
            if kind and b"less the required" not in line:
                found = float(match["mib"]) * (1 << 20)
                sizes[kind] = sizes.get(kind, 0.0) + found
                name = match["device"].split(b":")[-1].strip()
                device += 0.0 if not name or _HOST.search(name) else found
    return {kind: round(size) for kind, size in sizes.items()}, round(device)
