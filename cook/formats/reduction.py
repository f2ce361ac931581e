"""A model that computes less of itself with the same weights: fewer active experts, fewer layers.

Both are a matter of the file alone, so that nothing is quantized: how many routed experts a token
uses is a number in the metadata (``<arch>.expert_used_count``), and a layer that is left out is
tensors that are not copied, with those behind it renumbered. What is written is what mainline's
``llama-quantize --override-kv <arch>.expert_used_count=int:N --prune-layers L,.. IN OUT COPY``
writes (``llama_model_quantize_impl``), but where that leaves a file that no engine loads as meant:
values that the metadata lists by layer lose those of the layers left out, and
``leading_dense_block_count`` counts the dense layers that stay.

A file system that shares blocks can share nearly all of such a file with the one it is made of,
where the data lies at the same place of a block in both. Without layers the header is another
length, so that a text of spaces in it (``cook.padding``) makes up for that.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cook.errors import InputError
from cook.formats.gguf import SCALARS, GgufFile, MetadataArray, ValueType
from cook.formats.gguf_writer import NewTensor, copy_of, encode, sharing_padding
from cook.formats.quantized_file import QUANTIZATION_VERSION

EXPERTS_USED = "expert_used_count"
_LAYER = re.compile(r"blk\.(\d+)\.")
_LAST = (QUANTIZATION_VERSION, "general.file_type")
"""What llama-quantize states again, and so moves to the end."""
_NOT_BY_LAYER = ("rope.dimension_sections",)
"""Lists of as many values as a small model may happen to have layers."""


@dataclass(frozen=True)
class Reduction:
    """What a model does without. ``experts``: routed experts that a token uses, None for the
    model's own number; ``prune_layers``: numbers of the layers that are left out, ascending."""

    experts: int | None = None
    prune_layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        """``experts=4 prune_layers=3,7``: how a candidate's name says it."""
        parts = [f"experts={self.experts}"] if self.experts is not None else []
        if self.prune_layers:
            parts.append(f"prune_layers={','.join(map(str, self.prune_layers))}")
        return " ".join(parts)

    def named(self, model: str) -> str:
        """``model``'s name with the reduction's."""
        return f"{model} {self}".strip()

    def flags(self, architecture: str) -> tuple[str, ...]:
        """The reduction as flags of mainline's ``llama-quantize``."""
        layers = ",".join(map(str, self.prune_layers))
        key = f"{architecture}.{EXPERTS_USED}"
        return (
            *(("--override-kv", f"{key}=int:{self.experts}") if self.experts is not None else ()),
            *(("--prune-layers", layers) if layers else ()),
        )

    def applied_to(self, file: GgufFile) -> Reduction | None:
        """The part of it that changes ``file``; None if nothing does.

        InputError where the model has no such experts or layers.
        """
        experts = self.experts
        if experts is not None:
            key = f"{file.architecture}.{EXPERTS_USED}"
            if isinstance(file.metadata.get(key), MetadataArray):
                raise InputError(
                    f"{file.path}: {key} is stated by layer, and engines read that in different "
                    "ways",
                    hint="leave `experts` out for this model",
                )
            if not (used := file.integer(key)):
                raise InputError(
                    f"{file.path}: is no mixture of experts: it has no {key}",
                    hint="leave `experts` out for this model",
                )
            if not 1 <= experts <= used:
                raise InputError(
                    f"{file.path}: a token uses {used} experts, so it cannot use {experts} of them",
                    hint=f"experts are 1 to {used}",
                )
            experts = None if experts == used else experts
        if self.prune_layers:
            ahead = file.number("nextn_predict_layers") or 0
            own = max((file.number("block_count") or 0) - ahead, 0)
            if unknown := [layer for layer in self.prune_layers if not 0 <= layer < own]:
                more = f"; the last {ahead} only predict ahead" if ahead else ""
                raise InputError(
                    f"{file.path}: has layers 0 to {own - 1}, and no layer {unknown[0]} to leave "
                    f"out{more}"
                )
            if len(self.prune_layers) == own:
                raise InputError(
                    f"{file.path}: would be left without a layer", hint="leave out fewer"
                )
        changed = replace(self, experts=experts)
        return changed if changed != Reduction() else None


def reductions(
    experts: Sequence[int], prune_layers: Sequence[tuple[int, ...]]
) -> tuple[Reduction, ...]:
    """Every combination of the numbers of experts and the sets of layers to leave out."""
    return tuple(
        Reduction(used, layers)
        for used, layers in itertools.product(experts or (None,), prune_layers or ((),))
    )


def reduced(file: GgufFile, reduction: Reduction) -> tuple[dict[str, bytes], tuple[NewTensor, ...]]:
    """Metadata and tensors of ``file`` with ``reduction``, whole where it was split, its tensors
    copied in their order: for :func:`cook.formats.gguf_writer.write_gguf_file`.

    InputError where the model has no such experts or layers, or a tensor of unknown size.
    """
    found = reduction.applied_to(file) or Reduction()
    names = kept_tensors(file, found)
    tensors = tuple(replace(copy_of(file, old), name=new) for old, new in names.items())
    metadata = _metadata(file, found)
    return metadata | sharing_padding(metadata, tensors, file.alignment), tensors


def kept_tensors(file: GgufFile, reduction: Reduction) -> dict[str, str]:
    """Name in ``file`` -> name in the reduced one, of every tensor that stays."""
    numbers = _layer_numbers(file, reduction)
    names = {}
    for tensor in file.tensors:
        name = tensor.name
        if numbers and (found := _LAYER.search(name)) is not None:
            if (number := numbers.get(int(found[1]))) is None:
                continue
            name = f"{name[: found.start(1)]}{number}{name[found.end(1) :]}"
        names[tensor.name] = name
    return names


def _layer_numbers(file: GgufFile, reduction: Reduction) -> dict[int, int]:
    """Number in ``file`` -> number in the reduced one, of every layer that stays."""
    count = file.number("block_count") or 0
    stay = (layer for layer in range(count) if layer not in reduction.prune_layers)
    return {layer: number for number, layer in enumerate(stay)}


def _metadata(file: GgufFile, found: Reduction) -> dict[str, bytes]:
    """Metadata of the reduced file; changed keys come last, as in llama-quantize."""
    architecture = file.architecture
    metadata = file.raw_metadata()
    for key in _LAST:
        if key in metadata:
            metadata[key] = metadata.pop(key)

    def put(name: str, value: int) -> None:
        key = f"{architecture}.{name}"
        # As ik reads no other kind of number than the one it expects, the file's own stays.
        kind = ValueType(struct.unpack("<I", metadata.pop(key)[:4])[0])
        metadata[key] = encode(value, kind)

    if found.experts is not None:
        put(EXPERTS_USED, found.experts)
    if not found.prune_layers:
        return metadata
    layers = _layer_numbers(file, found)
    block_count = file.number("block_count")
    for key, value in file.metadata.items():
        prefix, _, name = key.partition(".")
        if (
            prefix == architecture
            and isinstance(value, MetadataArray)
            and value.element in SCALARS
            and value.count == block_count
            and name not in _NOT_BY_LAYER
        ):
            size = struct.calcsize(f"<{SCALARS[value.element]}")
            raw = b"".join(value.raw[layer * size : (layer + 1) * size] for layer in layers)
            metadata[key] = encode(MetadataArray(value.element, len(layers), raw))
    dense = file.metadata.get(f"{architecture}.leading_dense_block_count")
    left = sum(layer < dense for layer in layers) if isinstance(dense, int) else None
    if left is not None and left != dense:
        put("leading_dense_block_count", left)
    put("block_count", len(layers))
    return metadata
