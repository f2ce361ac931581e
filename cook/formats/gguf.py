"""GGUF headers, read tolerantly and without trust (layout: ggml/docs/gguf.md, ggml/src/gguf.cpp).

Reads versions 2 and 3, little endian, split or not, of either engine: a type id that cook does
not know is kept, its size bounded by its neighbours. Only the header is read, so a model of a
terabyte costs milliseconds; tensor data is read on demand, piece by piece. Whatever cannot be is
an InputError with file, byte and field.

Arrays of the metadata stay as the bytes of the file and are decoded when asked for: a vocabulary
of 150,000 tokens is walked once to find its end, and most readers never look at it.

For planning without a model, a list of tensors will do: name, shape and type as tab-separated
text.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from cook.errors import CookError, InputError
from cook.files import FileRange, Identity, identity
from cook.formats.cursor import Cursor, read_range, read_text, shown
from cook.formats.naming import shards_of, split_name
from cook.formats.quant_types import by_id, by_name


class ValueType(IntEnum):
    """``enum gguf_type``."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 48 << 20
"""The largest vocabularies have 0.3 M tokens and 0.6 M merges: some 15 MiB."""
MAX_LIST_BYTES = 64 << 20
MAX_STRINGS = 1 << 21
MAX_TENSORS = 1 << 18
MAX_KEYS = 1 << 16
MAX_NAME_BYTES = 1024
ALIGNMENTS = tuple(1 << power for power in range(25))
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_INT64_MAX = (1 << 63) - 1

MetadataScalar = int | float | bool | str


@dataclass(frozen=True)
class MetadataArray:
    """An array of ``count`` elements of one type, kept as the ``raw`` bytes of the file."""

    element: ValueType
    count: int
    raw: bytes = field(repr=False)

    def values(self) -> tuple[MetadataScalar, ...]:
        """All elements; strings that are not UTF-8 have replacement characters."""
        if self.element is ValueType.STRING:
            return tuple(text.decode(errors="replace") for text in self.strings())
        return struct.unpack(f"<{self.count}{SCALARS[self.element]}", self.raw)

    def strings(self) -> tuple[bytes, ...]:
        """The elements of a string array as the bytes in the file; ValueError for other types."""
        if self.element is not ValueType.STRING:
            raise ValueError("not an array of strings")
        raw, unpack, position = self.raw, struct.Struct("<Q").unpack_from, 0
        found = []
        for _ in range(self.count):
            start = position + 8
            position = start + unpack(raw, position)[0]
            found.append(raw[start:position])
        return tuple(found)


MetadataValue = MetadataScalar | MetadataArray
_Value = TypeVar("_Value", int, bool, str, MetadataArray)


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


def total_bytes(tensors: Sequence[TensorInfo]) -> int | None:
    """Bytes of all ``tensors`` without padding; None if a type is unknown."""
    known = [size for tensor in tensors if (size := tensor.size_bytes) is not None]
    return sum(known) if len(known) == len(tensors) else None


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
        return total_bytes(self.tensors)

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
        place = self.place(name)
        return read_range(place.path, place.offset, place.size_bytes)

    def place(self, name: str) -> FileRange:
        """Where the data of one tensor lies; InputError if its type is unknown."""
        tensor = self.tensor(name)
        if (size := tensor.size_bytes) is None:
            raise InputError(f"{self.path}: {name}: {tensor.type_name} is of unknown size")
        offset = self.data_offsets[tensor.shard] + tensor.offset
        return FileRange(self.shards[tensor.shard], offset, size)

    def raw_value(self, key: str) -> bytes:
        """A metadata value as the file has it (type, then bytes), for an exact copy."""
        start, end = self.value_spans[key]
        return read_range(self.shards[0], start, end - start)

    def raw_metadata(self) -> dict[str, bytes]:
        """Every :meth:`raw_value` of the whole model: without what the keys of a shard say."""
        return {key: self.raw_value(key) for key in self.metadata if key not in SPLIT_KEYS}

    def string(self, key: str) -> str | None:
        """A metadata string, or None if absent; InputError if of another type."""
        return self._value(key, str, "a string")

    def integer(self, key: str) -> int | None:
        """A metadata integer, or None if absent; InputError if of another type."""
        return self._value(key, int, "an integer")

    def number(self, key: str) -> int | None:
        """:meth:`integer` of the key under the architecture's name: ``qwen3.block_count``."""
        return self.integer(f"{self.architecture}.{key}")

    def boolean(self, key: str) -> bool | None:
        """A metadata boolean, or None if absent; InputError if of another type."""
        return self._value(key, bool, "a boolean")

    def array(self, key: str) -> MetadataArray | None:
        """A metadata array, or None if absent; InputError if of another type."""
        return self._value(key, MetadataArray, "an array")

    def _value(self, key: str, kind: type[_Value], what: str) -> _Value | None:
        value = self.metadata.get(key)
        if value is None or (type(value) is kind and isinstance(value, kind)):
            return value
        raise InputError(f"{self.path}: {key}: is not {what}")


def read_tensor_list(path: Path | str) -> tuple[TensorInfo, ...]:
    """Tensors listed as ``name <tab> 4096 x 1024 x 256 <tab> type`` lines (``#`` comments).

    For planning without the model; offsets are 0. InputError names the line.
    """
    path = Path(path)
    tensors: dict[str, TensorInfo] = {}
    for number, line in enumerate(read_text(path, MAX_LIST_BYTES).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, shape, type_name = line.split("\t")
            dims = tuple(int(part) for part in shape.split(" x "))
        except ValueError:
            raise InputError(
                f"{path}:{number}: expected name, shape and type, tab-separated"
            ) from None
        if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1:
            raise InputError(f"{path}:{number}: impossible shape {shown(shape)}")
        if name in tensors:
            raise InputError(f"{path}:{number}: {shown(name)} occurs twice")
        tensors[name] = TensorInfo(name, dims, by_name(type_name.strip()).id)
    return tuple(tensors.values())


def is_gguf(path: Path) -> bool:
    """Whether the file begins with the GGUF magic; InputError if it cannot be read."""
    with Cursor(path, len(MAGIC)) as cursor:
        return cursor.file_bytes >= len(MAGIC) and cursor.take(len(MAGIC), "magic") == MAGIC


def read_gguf(path: Path | str, *, complete: bool = True) -> GgufFile:
    """The header of a GGUF; from any shard of a split model, that of the whole model.

    ``complete=False`` is for a header fetched alone: tensor data may then lie past the end.
    """
    path = Path(path)
    header = read_shard(path, complete=complete)
    count = header.integer("split.count") or 0
    return header if count <= 1 else _join_shards(path, count, complete)


HEADERS_KEPT = 16
"""Headers in memory at most: one with a large vocabulary takes some 10 MB."""


def header(path: Path) -> GgufFile:
    """:func:`read_gguf`, but once while the files of the model stay as they are.

    A plan asks for the header of one source in many places, and of a model of terabytes that is
    dozens of files and a vocabulary each time.
    """
    # A missing shard is reported by read_gguf.
    shards = [file for file in shards_of(path) if file.exists()]
    return _kept_header(path, tuple(identity(file) for file in shards or [path]))


def header_if_there(path: Path) -> GgufFile | None:
    """:func:`header`, or None for a file that is not there yet or is no model."""
    try:
        return header(path)
    except CookError:
        return None


@lru_cache(maxsize=HEADERS_KEPT)
def _kept_header(path: Path, files: tuple[Identity, ...]) -> GgufFile:
    return read_gguf(path)


def _join_shards(path: Path, count: int, complete: bool) -> GgufFile:
    name = split_name(path)
    if name is None or name.count != count:
        raise InputError(
            f"{path}: is one shard of {count}, and its name does not say which",
            hint=f"name it <stem>-00001-of-{count:05d}.gguf, as llama-gguf-split did",
        )
    shards: list[GgufFile] = []
    for index, file in enumerate(shards_of(path)):
        if not file.exists():
            raise InputError(f"{file}: missing: {path.name} is one of {count} shards")
        shard = read_shard(file, index=index, complete=complete)
        for key, want in (("split.count", count), ("split.no", index)):
            if (got := shard.integer(key)) != want:
                raise InputError(f"{file}: {key}: is {got}, expected {want}")
        shards.append(shard)
    first = shards[0]
    tensors: dict[str, TensorInfo] = {}
    for tensor in (tensor for shard in shards for tensor in shard.tensors):
        if tensor.name in tensors:
            raise InputError(f"{path}: tensor {shown(tensor.name)} is in two shards")
        tensors[tensor.name] = tensor
    stated = first.integer("split.tensors.count")
    if stated not in (None, len(tensors)):
        raise InputError(
            f"{first.path}: split.tensors.count: is {stated}, the shards have {len(tensors)}"
        )
    digest = hashlib.sha256("".join(shard.header_digest for shard in shards).encode())
    return replace(
        first,
        tensors=tuple(tensors.values()),
        data_offsets=tuple(shard.data_offset for shard in shards),
        file_bytes=sum(shard.file_bytes for shard in shards),
        shards=tuple(shard.path for shard in shards),
        header_digest=digest.hexdigest(),
    )


def read_shard(path: Path, *, index: int = 0, complete: bool = True) -> GgufFile:
    """The header of this one file, whatever model it is a shard of: the one of ``index`` there.

    InputError as :func:`read_gguf`.
    """
    with Cursor(path, MAX_HEADER_BYTES) as cursor:
        version = _read_preamble(cursor)
        tensor_count = cursor.count("tensor count", MAX_TENSORS, least_bytes=24)
        key_count = cursor.count("metadata count", MAX_KEYS, least_bytes=13)
        metadata: dict[str, MetadataValue] = {}
        spans: dict[str, tuple[int, int]] = {}
        for number in range(key_count):
            key = cursor.name(f"metadata key {number}", MAX_NAME_BYTES, metadata)
            at = cursor.position
            metadata[key] = _read_value(cursor, key)
            spans[key] = at, cursor.position
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int:
            cursor.fail("general.alignment", "is no integer")
        if alignment not in ALIGNMENTS:
            cursor.fail("general.alignment", f"{alignment} is no power of two to {ALIGNMENTS[-1]}")
        tensors: dict[str, TensorInfo] = {}
        for number in range(tensor_count):
            name = cursor.name(f"tensor name {number}", MAX_NAME_BYTES, tensors)
            tensors[name] = _read_tensor(cursor, name, index, alignment)
        data_offset = -(-cursor.position // alignment) * alignment
        if complete:
            _check_data(cursor, tuple(tensors.values()), data_offset, alignment)
        return GgufFile(
            path=path,
            version=version,
            metadata=MappingProxyType(metadata),
            tensors=tuple(tensors.values()),
            alignment=alignment,
            data_offsets=(data_offset,),
            file_bytes=cursor.file_bytes,
            shards=(path,),
            header_digest=hashlib.sha256(read_range(path, 0, cursor.position)).hexdigest(),
            value_spans=spans,
        )


_FOREIGN = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the file it stands for", "git lfs pull"),
    (rb"\s*<(?:!doctype|html|\?xml)", "a web page", "download the file itself"),
    (rb'\s*\{\s*"(?:error|message)"', "a server's error answer", "log in, then download it again"),
    (rb".{8}\{\s*\"", "safetensors", "convert it: convert_hf_to_gguf.py, or name its folder"),
    (rb"PK\x03\x04|\x1f\x8b|\xfd7zXZ|7z\xbc\xaf", "an archive", "unpack it"),
)
"""First bytes of what is downloaded in a GGUF's place, what it is, and the mend."""


def _read_preamble(cursor: Cursor) -> int:
    """The version."""
    if (magic := cursor.take(4, "magic")) != MAGIC:
        head = magic + cursor.take(min(60, cursor.file_bytes - 4), "magic")
        for pattern, what, mend in _FOREIGN:
            if re.match(pattern, head, re.IGNORECASE | re.DOTALL):
                raise InputError(f"{cursor.path}: this is {what}", hint=mend)
        cursor.fail("magic", f"is {ascii(magic)[1:]}, not 'GGUF': not a GGUF file", at=0)
    version = cursor.u32("version")
    if version and version & 0xFFFF == 0:
        cursor.fail("version", "the file is big-endian; cook reads little-endian GGUF", at=4)
    if version not in (2, 3):
        cursor.fail("version", f"{version} is not supported (2 and 3 are)", at=4)
    return version


def _read_value(cursor: Cursor, field: str) -> MetadataValue:
    """One typed value at the cursor, no larger than what is left of the header."""
    kind = _value_type(cursor, field)
    if kind is ValueType.STRING:
        return cursor.take(cursor.u64(field), field).decode(errors="replace")
    if kind is not ValueType.ARRAY:
        raw = cursor.take(struct.calcsize(f"<{SCALARS[kind]}"), field)
        value: MetadataScalar = struct.unpack(f"<{SCALARS[kind]}", raw)[0]
        return value
    element = _value_type(cursor, field)
    if element is ValueType.ARRAY:
        cursor.fail(field, "arrays of arrays are not supported by any engine")
    if element is ValueType.STRING:
        count = cursor.count(field, MAX_STRINGS, least_bytes=8)
        return MetadataArray(element, count, cursor.strings(count, field))
    size = struct.calcsize(f"<{SCALARS[element]}")
    count = cursor.count(field, MAX_HEADER_BYTES, least_bytes=size)
    return MetadataArray(element, count, cursor.take(count * size, field))


def _value_type(cursor: Cursor, field: str) -> ValueType:
    at = cursor.position
    number = cursor.u32(field)
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(field, f"unknown value type {number}", at=at)


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


def _check_data(
    cursor: Cursor, tensors: tuple[TensorInfo, ...], data_offset: int, alignment: int
) -> None:
    """Every tensor lies inside the file and apart from the others."""
    needed = max((t.offset + (t.size_bytes or 0) for t in tensors), default=0) + data_offset
    written = sum(t.size_bytes or 0 for t in tensors) + data_offset  # without paddings
    if tensors and cursor.file_bytes < needed <= written + len(tensors) * alignment:
        raise InputError(
            f"{cursor.path}: cut short: {cursor.file_bytes} of {needed} bytes are here",
            hint="download it again",
        )
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
