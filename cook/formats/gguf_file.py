"""What a GGUF holds: tensors and metadata of a model, as :func:`cook.formats.gguf.read_gguf` gives.

Tensor data stays in the file; it is read on demand, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

from cook.errors import InputError
from cook.formats.cursor import read_range, shown
from cook.formats.gguf_values import MetadataArray, MetadataValue
from cook.formats.quant_types import by_id

MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``shape`` ne0 first; ``offset`` from the data section of shard ``shard``."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int = 0
    shard: int = 0

    @property
    def type_name(self) -> str:
        """The engine's spelling, or ``type <id>`` for an id that cook does not know."""
        known = by_id(self.type_id)
        return known.name if known else f"type {self.type_id}"

    @property
    def elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """Exact bytes without padding; None if the type is unknown."""
        known = by_id(self.type_id)
        return known.tensor_bytes(self.shape) if known else None


@dataclass(frozen=True, eq=False)
class GgufFile:
    """The header of a model: ``metadata`` of its first shard, ``tensors`` of all shards.

    ``file_bytes`` adds up all shards; ``data_offsets`` and ``shards`` are per shard;
    ``header_digest`` is the SHA-256 over all headers, in order. ``value_spans`` says where in the
    first shard each metadata value lies (its type, then its bytes).
    """

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    alignment: int
    data_offsets: tuple[int, ...]
    file_bytes: int
    shards: tuple[Path, ...]
    shard_bytes: tuple[int, ...]
    header_digest: str
    value_spans: Mapping[str, tuple[int, int]] = field(repr=False)

    @property
    def data_offset(self) -> int:
        """Where the data section of the first shard begins."""
        return self.data_offsets[0]

    @property
    def architecture(self) -> str:
        """``general.architecture``; InputError for a file that has none (not a model)."""
        if (found := self.string("general.architecture")) is None:
            raise InputError(f"{self.path}: general.architecture is missing: not a model")
        return found

    @property
    def tensor_bytes(self) -> int | None:
        """Bytes of all tensors without padding; None if a type is unknown."""
        sizes = [tensor.size_bytes for tensor in self.tensors]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @cached_property
    def _by_name(self) -> Mapping[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    def find(self, name: str) -> TensorInfo | None:
        """The tensor of this name, or None."""
        return self._by_name.get(name)

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of this name; InputError if the file has none."""
        if (found := self.find(name)) is None:
            raise InputError(f"{self.path}: has no tensor {shown(name)}")
        return found

    def read_tensor_bytes(self, name: str) -> bytes:
        """The data of one tensor; InputError if its type is unknown or the file too short."""
        return b"".join(self.tensor_chunks(name))

    def tensor_chunks(self, name: str, chunk_bytes: int = 1 << 24) -> Iterator[bytes]:
        """The data of one tensor in pieces of at most ``chunk_bytes``."""
        tensor = self.tensor(name)
        if (size := tensor.size_bytes) is None:
            raise InputError(f"{self.path}: {name}: {tensor.type_name} is of unknown size")
        start = self.data_offsets[tensor.shard] + tensor.offset
        for done in range(0, size, chunk_bytes):
            part = min(chunk_bytes, size - done)
            yield read_range(self.shards[tensor.shard], start + done, part)

    def raw_value(self, key: str) -> bytes:
        """A metadata value as the file has it (type, then bytes), for an exact copy."""
        start, end = self.value_spans[key]
        return read_range(self.shards[0], start, end - start)

    def string(self, key: str) -> str | None:
        """A metadata string, or None if absent; InputError if of another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise InputError(f"{self.path}: {key}: is not a string")

    def integer(self, key: str) -> int | None:
        """A metadata integer, or None if absent; InputError if of another type."""
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise InputError(f"{self.path}: {key}: is not an integer")

    def array(self, key: str) -> MetadataArray | None:
        """A metadata array, or None if absent; InputError if of another type."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, MetadataArray):
            return value
        raise InputError(f"{self.path}: {key}: is not an array")
