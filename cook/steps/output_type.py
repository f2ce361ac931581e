"""Step: a ready draft with its output tensor in another type.

One tensor is quantized, by the engine's library and as a piece like any other
(:mod:`cook.steps.quantize`); :mod:`cook.formats.quantized_file` says what the file is. Where the
file system shares blocks the rest of it takes no room.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from cook.engines.base import Engine, QuantizeJob, QuantizeResult, TypeRule
from cook.engines.worker.compile import locate, quantization_version
from cook.formats.gguf import ValueType, header_if_there, read_gguf
from cook.formats.gguf_writer import copy_of, encode, sharing_padding, tensor_at, write_gguf_file
from cook.formats.quant_types import by_name
from cook.formats.quantized_file import (
    OUTPUT,
    QUANTIZATION_VERSION,
    output_tensor,
    require_output_type,
)
from cook.graph.step import Cost, Input, JsonValue, Source, Workbench
from cook.steps.quantize import make_tensors, seconds_a_weight
from cook.steps.work import MODEL_FILE, ModelStep, written_model

_BASE = "Q8_0"
"""Of the command that a report shows: mainline reads rules under quantized base types alone."""


@dataclass(frozen=True)
class OutputTypeStep(ModelStep):
    """``model`` with its output tensor as ``output_type``; artifact ``model.gguf``, one file.

    ``name`` is the candidate's. The file of the result's ``command`` has the same tensors; there is
    none where the embeddings were tied, since llama-quantize adds no tensor.
    """

    engine: Engine
    name: str
    model: Source
    output_type: str
    predicted_tensor_bytes: int | None = None

    kind: ClassVar[str] = "head"

    @property
    def label(self) -> str:
        return f"output tensor {self.name} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        return {"type": self.output_type}

    @property
    def origin(self) -> Input:
        return self.model

    def cost(self) -> Cost:
        """Its one tensor is quantized, and the rest copied and hashed."""
        file = header_if_there(self.model.path)
        weights = output_tensor(file).elements if file is not None else 0
        return Cost(
            arithmetic_s=weights * seconds_a_weight(self.output_type),
            copied_bytes=float(self.disk_bytes() or 0),
            read_bytes=float(self.predicted_tensor_bytes or self.model.size_bytes),
        )

    def predicted_bytes(self) -> int | None:
        return self.predicted_tensor_bytes

    def shared_bytes(self) -> Mapping[Hashable, int]:
        if (file := header_if_there(self.model.path)) is None:
            return {}
        size = by_name(self.output_type).tensor_bytes(output_tensor(file).shape)
        return {(self.model.key, self.engine.identity.digest, OUTPUT, self.output_type): size}

    def run(self, bench: Workbench) -> QuantizeResult:
        started = time.monotonic()
        file = read_gguf(self.model.path)
        require_output_type(file, self.output_type, self.engine.flavour)
        tensor, wanted = output_tensor(file), by_name(self.output_type)
        made, peak_bytes = make_tensors(self.engine, self.model, file, {tensor.name: wanted}, bench)
        tensors = [copy_of(file, t.name) for t in file.tensors if t.name != OUTPUT]
        tensors.append(tensor_at(OUTPUT, tensor.shape, wanted.id, made[tensor.name]))
        metadata = file.raw_metadata()
        version = quantization_version(locate(self.engine))
        metadata[QUANTIZATION_VERSION] = encode(version, ValueType.UINT32)
        metadata |= sharing_padding(metadata, tensors, file.alignment)
        output = bench.directory / MODEL_FILE
        write_gguf_file(output, metadata, tensors, alignment=file.alignment, durable=False)
        if file.find(OUTPUT) is None:
            return written_model(output, started, (), peak_bytes)
        # Every tensor's type stated, so that those that have it are copied.
        names: dict[str, list[str]] = defaultdict(list)
        for tensor in file.tensors:
            if len(tensor.shape) > 1 and tensor.name != OUTPUT:
                names[tensor.type_name].append(re.escape(tensor.name))
        stated = (TypeRule(f"^({'|'.join(some)})$", type) for type, some in names.items())
        job = QuantizeJob(
            source=self.model.path,
            output=output,
            ftype=_BASE,
            rules=(TypeRule(f"^{re.escape(OUTPUT)}$", self.output_type), *stated),
            imatrix=None,
            threads=1,
            expected={},
            allow_requantize=True,
        )
        return written_model(output, started, self.engine.quantize_command(job), peak_bytes)
