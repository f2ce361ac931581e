"""GGUF headers, read tolerantly and without trust (layout: ggml/docs/gguf.md, ggml/src/gguf.cpp).

Reads versions 2 and 3, little endian, split or not, of either engine: a type id that cook does
not know is kept, its size bounded by its neighbours. Only the header is read, so a model of a
terabyte costs milliseconds. Whatever cannot be is an InputError with file, byte and field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType

from cook.errors import InputError
from cook.formats.cursor import Cursor, shown
from cook.formats.gguf_file import MAX_DIMS, GgufFile, TensorInfo
from cook.formats.gguf_values import MetadataArray, MetadataValue, read_value
from cook.formats.naming import shard_path, split_name
from cook.formats.quant_types import by_id
from cook.formats.tensor_list import read_tensor_list

__all__ = [
    "GgufFile",
    "MetadataArray",
    "MetadataValue",
    "TensorInfo",
    "is_gguf",
    "read_gguf",
    "read_tensor_list",
]

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 48 << 20
MAX_TENSORS = 1 << 18
MAX_KEYS = 1 << 16
MAX_NAME_BYTES = 1024
MAX_ALIGNMENT = 1 << 24
DEFAULT_ALIGNMENT = 32
_INT64_MAX = (1 << 63) - 1


def is_gguf(path: Path) -> bool:
    """Whether the file begins with the GGUF magic; InputError if it cannot be read."""
    with Cursor(path, len(MAGIC)) as cursor:
        return cursor.file_bytes >= len(MAGIC) and cursor.take(len(MAGIC), "magic") == MAGIC


def read_gguf(path: Path | str, *, complete: bool = True) -> GgufFile:
    """The header of a GGUF; from any shard of a split model, that of the whole model.

    ``complete=False`` is for a header fetched alone: tensor data may then lie past the end.
    """
    path = Path(path)
    header = _read_shard(path, 0, complete)
    count = header.integer("split.count") or 0
    if count <= 1:
        return header
    return _join_shards(path, header, count, complete)


def _join_shards(path: Path, header: GgufFile, count: int, complete: bool) -> GgufFile:
    name = split_name(path)
    if name is None or name.count != count:
        raise InputError(
            f"{path}: is one shard of {count}, and its name does not say which",
            hint=f"name it <stem>-00001-of-{count:05d}.gguf, as llama-gguf-split did",
        )
    shards: list[GgufFile] = []
    for index in range(count):
        file = shard_path(path, index + 1, count)
        if not file.exists():
            raise InputError(f"{file}: missing: {path.name} is one of {count} shards")
        shard = _read_shard(file, index, complete)
        for key, want in (("split.count", count), ("split.no", index)):
            if (got := shard.integer(key)) != want:
                raise InputError(f"{file}: {key}: is {got}, expected {want}")
        shards.append(shard)
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    first = shards[0]
    stated = first.integer("split.tensors.count")
    if stated is not None and stated != len(tensors):
        raise InputError(
            f"{first.path}: split.tensors.count: is {stated}, the shards have {len(tensors)}"
        )
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise InputError(f"{path}: tensor {shown(tensor.name)} is in two shards")
        seen.add(tensor.name)
    digest = hashlib.sha256("".join(shard.header_digest for shard in shards).encode())
    return GgufFile(
        path=first.path,
        version=first.version,
        metadata=first.metadata,
        tensors=tensors,
        alignment=first.alignment,
        data_offsets=tuple(shard.data_offset for shard in shards),
        file_bytes=sum(shard.file_bytes for shard in shards),
        shards=tuple(shard.path for shard in shards),
        shard_bytes=tuple(shard.file_bytes for shard in shards),
        header_digest=digest.hexdigest(),
        value_spans=first.value_spans,
    )


def _read_shard(path: Path, index: int, complete: bool) -> GgufFile:
    with Cursor(path, MAX_HEADER_BYTES) as cursor:
        version = _read_preamble(cursor)
        tensor_count = _count(cursor, "tensor count", MAX_TENSORS, least_bytes=24)
        key_count = _count(cursor, "metadata count", MAX_KEYS, least_bytes=13)
        metadata, spans = _read_metadata(cursor, key_count)
        alignment = _alignment(cursor, metadata)
        tensors = _read_tensors(cursor, tensor_count, index, alignment)
        data_offset = _padded(cursor.position, alignment)
        if complete:
            _check_data(cursor, tensors, data_offset)
        return GgufFile(
            path=path,
            version=version,
            metadata=MappingProxyType(metadata),
            tensors=tensors,
            alignment=alignment,
            data_offsets=(data_offset,),
            file_bytes=cursor.file_bytes,
            shards=(path,),
            shard_bytes=(cursor.file_bytes,),
            header_digest=hashlib.sha256(cursor.buffer[: cursor.position]).hexdigest(),
            value_spans=spans,
        )


def _read_preamble(cursor: Cursor) -> int:
    magic = cursor.take(4, "magic")
    if magic != MAGIC:
        cursor.fail("magic", f"is {ascii(magic)[1:]}, not 'GGUF': not a GGUF file", at=0)
    version = cursor.u32("version")
    if version and version & 0xFFFF == 0:
        cursor.fail("version", "the file is big-endian; cook reads little-endian GGUF", at=4)
    if version not in (2, 3):
        cursor.fail("version", f"{version} is not supported (2 and 3 are)", at=4)
    return version


def _count(cursor: Cursor, field: str, limit: int, *, least_bytes: int) -> int:
    at = cursor.position
    count = cursor.u64(field)
    if count > limit:
        cursor.fail(field, f"{count} is more than {limit}", at=at)
    if count * least_bytes > cursor.file_bytes - cursor.position:
        cursor.fail(field, f"{count} cannot fit in the file", at=at)
    return count


def _read_metadata(
    cursor: Cursor, count: int
) -> tuple[dict[str, MetadataValue], dict[str, tuple[int, int]]]:
    metadata: dict[str, MetadataValue] = {}
    spans: dict[str, tuple[int, int]] = {}
    for index in range(count):
        at = cursor.position
        key = cursor.name(f"metadata key {index}", MAX_NAME_BYTES)
        if key in metadata:
            cursor.fail(f"metadata key {index}", f"{shown(key)} occurs twice", at=at)
        at = cursor.position
        metadata[key] = read_value(cursor, key)
        spans[key] = at, cursor.position
    return metadata, spans


def _alignment(cursor: Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        cursor.fail("general.alignment", "is not an integer")
    if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cursor.fail("general.alignment", f"{value} is not a power of two up to {MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: Cursor, count: int, shard: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        at = cursor.position
        name = cursor.name(f"tensor name {index}", MAX_NAME_BYTES)
        if name in tensors:
            cursor.fail(f"tensor name {index}", f"{shown(name)} occurs twice", at=at)
        tensors[name] = _read_tensor(cursor, name, shard, alignment)
    return tuple(tensors.values())


def _read_tensor(cursor: Cursor, name: str, shard: int, alignment: int) -> TensorInfo:
    at = cursor.position
    dims = cursor.u32(f"{name}: dimensions")
    if dims > MAX_DIMS:
        cursor.fail(f"{name}: dimensions", f"{dims} is more than {MAX_DIMS}", at=at)
    shape = tuple(cursor.u64(f"{name}: shape") for _ in range(dims)) or (1,)
    if prod(max(n, 1) for n in shape) > _INT64_MAX:
        cursor.fail(f"{name}: shape", f"{shape} overflows", at=at)
    at = cursor.position
    type_id = cursor.u32(f"{name}: type")
    known = by_id(type_id)
    if known and shape[0] % known.block:
        reason = f"rows of {shape[0]} do not divide into {known.name} blocks of {known.block}"
        cursor.fail(f"{name}: shape", reason, at=at)
    at = cursor.position
    offset = cursor.u64(f"{name}: offset")
    if offset % alignment:
        cursor.fail(f"{name}: offset", f"{offset} is not a multiple of {alignment}", at=at)
    return TensorInfo(name, shape, type_id, offset, shard)


def _check_data(cursor: Cursor, tensors: tuple[TensorInfo, ...], data_offset: int) -> None:
    """Every tensor lies inside the file and apart from the others."""
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        size = tensor.size_bytes or 0
        if data_offset + tensor.offset + size > cursor.file_bytes:
            reason = f"{tensor.offset} + {size} bytes: the file ends after {cursor.file_bytes}"
            cursor.fail(f"{tensor.name}: data", reason, at=data_offset + tensor.offset)
        if size and tensor.offset < end:
            reason = f"overlaps {shown(before)}"
            cursor.fail(f"{tensor.name}: data", reason, at=data_offset + tensor.offset)
        if size:
            end, before = tensor.offset + size, tensor.name


def _padded(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
