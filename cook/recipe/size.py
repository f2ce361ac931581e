"""Exact sizes: bytes of tensor data of a quant before it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from cook.recipe.rules import Resolution, Tensor


class SizedTensor(Tensor, Protocol):
    """A tensor that knows its present size; None for a type we do not know."""

    @property
    def size_bytes(self) -> int | None: ...


def tensor_sizes(
    tensors: Iterable[SizedTensor], resolution: Resolution
) -> Mapping[str, int | None]:
    """Bytes of each tensor's data after quantizing; None where the engine's mixture decides."""
    from cook.formats.quant_types import by_name

    sizes: dict[str, int | None] = {}
    for tensor in tensors:
        wanted = resolution.types[tensor.name]
        if wanted is None:
            sizes[tensor.name] = None
        elif wanted == tensor.type_name:
            sizes[tensor.name] = tensor.size_bytes
        else:
            sizes[tensor.name] = by_name(wanted).tensor_bytes(tensor.shape)
    return sizes


def predicted_bytes(tensors: Iterable[SizedTensor], resolution: Resolution) -> int | None:
    """Bytes of all tensor data (no header, no padding); None if any type is not yet known."""
    total = 0
    for size in tensor_sizes(tensors, resolution).values():
        if size is None:
            return None
        total += size
    return total


def predicted_bpw(tensors: Iterable[SizedTensor], resolution: Resolution) -> float | None:
    """Bits per weight over all tensors, as mainline's "BPW" counts them."""
    listed = tuple(tensors)
    size = predicted_bytes(listed, resolution)
    elements = 0
    for tensor in listed:
        count = 1
        for n in tensor.shape:
            count *= n
        elements += count
    return None if size is None or not elements else 8 * size / elements
