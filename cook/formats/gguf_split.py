"""A model in several files, cut as llama-gguf-split cuts one (``tools/gguf-split/gguf-split.cpp``).

The first shard has all metadata, the others say only which shard of which split they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cook.errors import InputError
from cook.formats.gguf import DEFAULT_ALIGNMENT, ValueType
from cook.formats.gguf_writer import NewTensor, encode, write_gguf_file
from cook.formats.naming import MAX_SHARDS, model_stem, shard_path
from cook.formats.quant_types import Flavour

UNITS = {"M": 1000**2, "G": 1000**3}
"""Bytes, as ``--split-max-size`` counts them."""


@dataclass(frozen=True)
class SplitLimit:
    """Where the next shard begins: after ``max_bytes`` of padded tensor data (a larger tensor has
    a shard of its own), or after ``max_tensors``. One of both is set."""

    max_bytes: int | None = None
    max_tensors: int | None = None

    @property
    def as_typed(self) -> dict[str, str | int]:
        """The limit as a recipe writes it; sizes are whole millions of bytes."""
        if self.max_bytes is None:
            return {"max_tensors": self.max_tensors or 0}
        unit = "M" if self.max_bytes % UNITS["G"] else "G"
        return {"max_size": f"{self.max_bytes // UNITS[unit]}{unit}"}

    def shards(self, tensors: Sequence[NewTensor]) -> tuple[tuple[NewTensor, ...], ...]:
        """``tensors`` in their order, shard by shard; none of them is empty."""
        found: list[list[NewTensor]] = [[]]
        filled = 0
        for tensor in tensors:
            padded = tensor.size_bytes + -tensor.size_bytes % DEFAULT_ALIGNMENT
            full = (
                filled + padded > self.max_bytes
                if self.max_bytes is not None
                else len(found[-1]) == self.max_tensors
            )
            if full and found[-1]:
                found.append([])
                filled = 0
            found[-1].append(tensor)
            filled += padded
        return tuple(map(tuple, found))


def write_split_gguf(
    path: Path,
    metadata: Mapping[str, bytes],
    tensors: Sequence[NewTensor],
    limit: SplitLimit | None,
    flavour: Flavour,
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> tuple[Path, ...]:
    """Write ``path``'s model as shards next to it, each whole or not at all; their paths in order.

    What fits into one shard, or has no ``limit``, is written as ``path``. ``metadata`` is that of
    the whole, as for :func:`cook.formats.gguf_writer.write_gguf_file`. The files may not outlast
    a power cut: what keeps them sees to that. InputError for more than 65,535 shards.
    """
    shards = limit.shards(tensors) if limit is not None else (tuple(tensors),)
    if len(shards) == 1:
        write_gguf_file(path, metadata, tensors, alignment=alignment, durable=False)
        return (path,)
    if len(shards) > MAX_SHARDS:
        raise InputError(
            f"{path.name}: {len(shards)} shards, and a split has at most {MAX_SHARDS}",
            hint="a larger `split`",
        )
    stem = path.with_name(model_stem(path))
    paths = tuple(shard_path(stem, n, len(shards)) for n in range(1, len(shards) + 1))
    for number, (shard, part) in enumerate(zip(paths, shards, strict=True)):
        split_keys = _split_keys(number, len(shards), len(tensors), flavour)
        # Behind the first without general.alignment, so of the default.
        own, padded = (metadata, alignment) if number == 0 else ({}, DEFAULT_ALIGNMENT)
        write_gguf_file(shard, {**own, **split_keys}, part, alignment=padded, durable=False)
    return paths


def _split_keys(number: int, count: int, tensors: int, flavour: Flavour) -> dict[str, bytes]:
    """The keys in the order of each engine's tool, which writes the count twice: on mainline that
    moves it to the end, on ik it stays in its place."""
    keys = {
        "split.no": encode(number, ValueType.UINT16),
        "split.count": encode(count, ValueType.UINT16),
        "split.tensors.count": encode(tensors, ValueType.INT32),
    }
    if flavour is Flavour.LLAMA_CPP:
        keys["split.count"] = keys.pop("split.count")
    return keys
