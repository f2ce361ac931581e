"""Step: a draft that computes less of itself, with the tensors of another as they are.

Nothing is quantized: :mod:`cook.formats.reduction` says what such a file is. Where the file system
shares blocks it takes the room of its header; elsewhere it is a copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cook.engines.base import QuantizeResult
from cook.files import shares_blocks
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import write_gguf_file
from cook.formats.reduction import Reduction, reduced
from cook.graph.cost import Cost
from cook.graph.step import Input, JsonValue, Step, Workbench
from cook.paths import cook_home
from cook.steps.made_model import MODEL_FILE, ModelStep, model_path, written_model
from cook.steps.work import read_bytes


@dataclass(frozen=True)
class ReduceStep(ModelStep):
    """``model`` with ``reduction``; artifact ``model.gguf``. No engine has a part in it.

    ``name`` is the candidate's. The file of the result's ``command`` has the same tensors.
    """

    name: str
    model: Input
    reduction: Reduction
    predicted_tensor_bytes: int | None = None

    kind: ClassVar[str] = "reduce"

    @property
    def label(self) -> str:
        return f"reduce {self.name}"

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "experts": self.reduction.experts,
            "prune_layers": list(self.reduction.prune_layers),
        }

    @property
    def origin(self) -> Input:
        return self.model

    def computed_share(self) -> float:
        return read_bytes(self) / (read_bytes(self.model) or 1)

    def cost(self) -> Cost:
        """Next to a copy of the file, or of its header, its bytes are read once to be hashed."""
        size = float(self.predicted_tensor_bytes or 0)
        return Cost(copied_bytes=float(self.disk_bytes() or 0), read_bytes=size)

    def predicted_bytes(self) -> int | None:
        return self.predicted_tensor_bytes

    def disk_bytes(self) -> int | None:
        shared = isinstance(self.model, Step) and shares_blocks(cook_home())
        return 0 if shared else self.predicted_bytes()

    def run(self, bench: Workbench) -> QuantizeResult:
        started = time.monotonic()
        source = model_path(bench, self.model)
        file = read_gguf(source)
        metadata, kept = reduced(file, self.reduction)
        output = bench.directory / MODEL_FILE
        write_gguf_file(output, metadata, kept, alignment=file.alignment, durable=False)
        flags = self.reduction.flags(file.architecture)
        command = ("llama-quantize", *flags, str(source), str(output), "COPY", "1")
        return written_model(output, started, command)
