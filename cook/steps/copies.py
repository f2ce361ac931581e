"""Steps: models of which nothing is quantized, with the tensors of others as they are.

*Reduce*: a draft that computes less of itself (:mod:`cook.formats.reduction`). *Splice*: a target
with another head in the place of its own, for engines that take a head from nowhere else
(ik_llama.cpp). Where the file system shares blocks the one takes the room of its header, the other
that of the head; elsewhere each is a whole copy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cook.engines.base import QuantizeResult
from cook.errors import StepError
from cook.files import shares_blocks
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import copy_of, encode, sharing_padding, write_gguf_file
from cook.formats.heads import SPLICED, head_of
from cook.formats.reduction import Reduction, reduced
from cook.graph.step import Cost, Input, JsonValue, Source, Step, Workbench
from cook.paths import cook_home
from cook.steps.work import MODEL_FILE, ModelStep, model_path, read_bytes, written_model


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


@dataclass(frozen=True)
class SpliceHeadStep(ModelStep):
    """``target`` with the head in the file ``head``, of ``head_bytes``; artifact ``model.gguf``.
    ``name`` is the candidate's."""

    name: str
    target: Source
    head: Input
    head_bytes: int | None

    kind: ClassVar[str] = "splice-head"

    @property
    def label(self) -> str:
        return f"target with head {self.name}"

    def params(self) -> Mapping[str, JsonValue]:
        return {}

    @property
    def origin(self) -> Input:
        return self.target

    @property
    def head_file(self) -> Input:
        return self.head

    def cost(self) -> Cost:
        """Next to the copy its bytes are read once to be hashed."""
        size = float(self.target.size_bytes)
        return Cost(copied_bytes=float(self.disk_bytes() or size), read_bytes=size)

    def predicted_bytes(self) -> int:
        return self.target.size_bytes  # but for the difference of two heads

    def disk_bytes(self) -> int | None:
        return self.head_bytes if shares_target(self.target) else self.predicted_bytes()

    def run(self, bench: Workbench) -> QuantizeResult:
        started = time.monotonic()
        target, other = read_gguf(self.target.path), read_gguf(model_path(bench, self.head))
        head = head_of(other)
        if head is None:
            raise StepError(f"{self.label}: {other.path} holds no head")
        own = {t.name for t in head.tensors_of(other) if t.name.startswith("blk.")}
        tensors = [copy_of(other if t.name in own else target, t.name) for t in target.tensors]
        metadata = target.raw_metadata()
        metadata[SPLICED] = encode(self.head.key)
        metadata |= sharing_padding(metadata, tensors, target.alignment)
        output = bench.directory / MODEL_FILE
        write_gguf_file(output, metadata, tensors, alignment=target.alignment, durable=False)
        return written_model(output, started, ())


def shares_target(target: Source) -> bool:
    """Whether a copy of ``target`` in cook's home shares its blocks."""
    home = cook_home()
    while not home.exists():
        home = home.parent
    same = home.stat().st_dev == target.path.resolve().stat().st_dev
    return same and shares_blocks(home)
