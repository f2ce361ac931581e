"""Writes GGUF version 3: metadata and tensors of any type id, aligned and padded as ggml does.

Enough for imatrix files, splices and tests; python ``gguf`` refuses the type ids of ik_llama.cpp.
A model in several files is cut as llama-gguf-split cuts one (``tools/gguf-split/gguf-split.cpp``):
the first shard has all metadata, the others say only which shard of which split they are.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cook.errors import InputError, InternalError
from cook.files import SHARED_BLOCK, FileRange, atomic_write
from cook.formats.gguf import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    GgufFile,
    MetadataArray,
    MetadataScalar,
    ValueType,
)
from cook.formats.naming import MAX_SHARDS, model_stem, shard_path
from cook.formats.quant_types import Flavour

VERSION = 3
_PADDING = "cook.padding"
WritableValue = MetadataScalar | MetadataArray | Sequence[MetadataScalar]


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: ``data`` makes its ``size_bytes`` bytes in pieces, when asked, or says
    where they lie."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    size_bytes: int
    data: Callable[[], Iterable[bytes]] | FileRange


def tensor_of(name: str, shape: tuple[int, ...], type_id: int, data: bytes) -> NewTensor:
    """A tensor whose bytes are at hand."""
    return NewTensor(name, shape, type_id, len(data), lambda: (data,))


def copy_of(source: GgufFile, name: str) -> NewTensor:
    """A tensor copied from a file, byte for byte; InputError if its size is unknown."""
    tensor = source.tensor(name)
    return tensor_at(name, tensor.shape, tensor.type_id, source.place(name))


def tensor_at(name: str, shape: tuple[int, ...], type_id: int, data: FileRange) -> NewTensor:
    """A tensor whose bytes lie in another file."""
    return NewTensor(name, shape, type_id, data.size_bytes, data)


def encode(value: WritableValue, kind: ValueType | None = None) -> bytes:
    """A metadata value as GGUF bytes: its type, then itself.

    ``kind`` is the type of the value, or of the elements of a sequence; by default str, bool,
    32-bit int (unsigned where it can be) and float32.
    """
    if isinstance(value, MetadataArray):
        return struct.pack("<IIQ", ValueType.ARRAY, value.element, value.count) + value.raw
    if isinstance(value, str | bool | int | float):
        kind = _kind_of([value]) if kind is None else kind
        return struct.pack("<I", kind) + _payload(value, kind)
    kind = _kind_of(value) if kind is None else kind
    body = b"".join(_payload(item, kind) for item in value)
    return struct.pack("<IIQ", ValueType.ARRAY, kind, len(value)) + body


def write_gguf_file(
    path: Path,
    metadata: Mapping[str, bytes],
    tensors: Sequence[NewTensor],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    durable: bool = True,
) -> None:
    """Write a GGUF, whole or not at all; ``durable``: see :func:`cook.files.atomic_write`.

    ``metadata`` values are :func:`encode`'s bytes (or ``GgufFile.raw_value``'s); with another
    than the default ``alignment`` they must say so in ``general.alignment``.
    """
    header = encode_header(metadata, tensors, alignment=alignment)
    with atomic_write(path, durable=durable) as file:
        file.write(header)
        for run in _runs(tensors, alignment):
            written = 0
            if isinstance(run.data, FileRange):
                run.data.append_to(file)
                written = run.data.size_bytes
            else:
                for part in run.data():
                    written += file.write(part)
            if written != run.size_bytes:
                raise InternalError(f"{run.name}: {written} bytes of {run.size_bytes} were written")
            file.write(bytes(-written % alignment))


def write_copy(source: GgufFile, path: Path, zeros: Collection[str] = ()) -> Path:
    """Write the tensors that ``source`` has, as they lie, with its metadata; returns ``path``.
    Of ``zeros`` every byte is 0, and so is every weight, in any type."""
    metadata = source.raw_metadata()
    tensors = [copy_of(source, tensor.name) for tensor in source.tensors]
    tensors = [replace(t, data=partial(_zeros, t)) if t.name in zeros else t for t in tensors]
    metadata |= sharing_padding(metadata, tensors, source.alignment)
    write_gguf_file(path, metadata, tensors, alignment=source.alignment, durable=False)
    return path


def _zeros(tensor: NewTensor) -> Iterable[bytes]:
    yield bytes(tensor.size_bytes)


def encode_header(
    metadata: Mapping[str, bytes],
    tensors: Sequence[NewTensor],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """Everything before the data section, padded; offsets follow from the tensors' sizes."""
    header = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + value
    offset = 0
    for tensor in tensors:
        shape = tensor.shape
        header += _text(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", tensor.type_id, offset)
        offset += tensor.size_bytes + -tensor.size_bytes % alignment
    if tensors:
        header += bytes(-len(header) % alignment)
    return bytes(header)


def sharing_padding(
    metadata: Mapping[str, bytes], tensors: Sequence[NewTensor], alignment: int
) -> dict[str, bytes]:
    """The key and the text by which most of the data lies in its blocks as in the files that it is
    copied from, so that a file system can share them; none where it does anyway."""
    shifts: Counter[int] = Counter()
    offset = 0
    for tensor in tensors:
        if isinstance(tensor.data, FileRange):
            shifts[(tensor.data.offset - offset) % SHARED_BLOCK] += tensor.size_bytes
        offset += tensor.size_bytes + -tensor.size_bytes % alignment
    if not shifts:
        return {}
    ((wanted, _),) = shifts.most_common(1)
    if len(encode_header(metadata, tensors, alignment=alignment)) % SHARED_BLOCK == wanted:
        return {}
    empty = dict(metadata) | {_PADDING: encode("")}
    header_bytes = len(encode_header(empty, tensors, alignment=alignment))
    return {_PADDING: encode(" " * ((wanted - header_bytes) % SHARED_BLOCK))}


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


def write_split(
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
    the whole, as for :func:`write_gguf_file`. The files may not outlast
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
        keys = {
            "split.no": encode(number, ValueType.UINT16),
            "split.count": encode(len(shards), ValueType.UINT16),
            "split.tensors.count": encode(len(tensors), ValueType.INT32),
        }
        # Each engine's tool writes the count twice: that moves it to the end on mainline alone.
        if flavour is Flavour.LLAMA_CPP:
            keys["split.count"] = keys.pop("split.count")
        # Behind the first without general.alignment, so of the default.
        own, padded = (metadata, alignment) if number == 0 else ({}, DEFAULT_ALIGNMENT)
        write_gguf_file(shard, {**own, **keys}, part, alignment=padded, durable=False)
    return paths


def _runs(tensors: Sequence[NewTensor], alignment: int) -> list[NewTensor]:
    """``tensors``, those that lie one after the other in another file as one."""
    runs: list[NewTensor] = []
    for tensor in tensors:
        before, after = runs[-1].data if runs else None, tensor.data
        if isinstance(before, FileRange) and isinstance(after, FileRange):
            padded = before.size_bytes + -before.size_bytes % alignment
            if before.path == after.path and before.offset + padded == after.offset:
                size = padded + after.size_bytes
                joined = replace(before, size_bytes=size)
                runs[-1] = replace(runs[-1], size_bytes=size, data=joined)
                continue
        runs.append(tensor)
    return runs


def _kind_of(values: Sequence[MetadataScalar]) -> ValueType:
    first = values[0] if values else ""
    if isinstance(first, str):
        return ValueType.STRING
    if isinstance(first, bool):
        return ValueType.BOOL
    if isinstance(first, float):
        return ValueType.FLOAT32
    negative = any(isinstance(value, int) and value < 0 for value in values)
    return ValueType.INT32 if negative else ValueType.UINT32


def _payload(value: MetadataScalar, kind: ValueType) -> bytes:
    if kind is ValueType.STRING:
        return _text(str(value))
    return struct.pack(f"<{SCALARS[kind]}", value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
