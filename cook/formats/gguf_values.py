"""Metadata values of a GGUF: scalars, strings and arrays (GGUF specification, ggml/docs/gguf.md).

Arrays stay as the bytes of the file and are decoded when asked for: a vocabulary of 150,000
tokens is walked once to find its end, and most readers never look at it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from cook.formats.cursor import Cursor


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

# The largest vocabularies have 0.3 M tokens and 0.6 M merges: some 15 MiB.
MAX_STRINGS = 1 << 21
MAX_ARRAY_BYTES = 32 << 20
MAX_STRING_BYTES = 8 << 20

Scalar = int | float | bool | str


@dataclass(frozen=True)
class MetadataArray:
    """An array of ``count`` elements of one type, kept as the ``raw`` bytes of the file."""

    element: ValueType
    count: int
    raw: bytes = field(repr=False)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Scalar]:
        return iter(self.values())

    def values(self) -> tuple[Scalar, ...]:
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


MetadataValue = Scalar | MetadataArray


def read_value(cursor: Cursor, field: str) -> MetadataValue:
    """One typed value at the cursor; InputError if its type or size is impossible."""
    kind = _value_type(cursor, field)
    if kind is ValueType.ARRAY:
        return _read_array(cursor, field)
    if kind is ValueType.STRING:
        length = cursor.u64(field)
        if length > MAX_STRING_BYTES:
            cursor.fail(field, f"string of {length} bytes (limit {MAX_STRING_BYTES})")
        return cursor.take(length, field).decode(errors="replace")
    layout = f"<{SCALARS[kind]}"
    raw = cursor.take(struct.calcsize(layout), field)
    value: Scalar = struct.unpack(layout, raw)[0]
    return value


def _read_array(cursor: Cursor, field: str) -> MetadataArray:
    element = _value_type(cursor, field)
    if element is ValueType.ARRAY:
        cursor.fail(field, "arrays of arrays are not supported by any engine")
    count = cursor.u64(field)
    start = cursor.position
    if element is ValueType.STRING:
        if count > MAX_STRINGS:
            cursor.fail(field, f"{count} strings (limit {MAX_STRINGS})", at=start - 8)
        if count * 8 > cursor.file_bytes - start:
            cursor.fail(field, f"{count} strings cannot fit in the file", at=start - 8)
        cursor.skip_strings(count, field)
        if cursor.position - start > MAX_ARRAY_BYTES:
            cursor.fail(field, f"array of more than {MAX_ARRAY_BYTES} bytes", at=start - 8)
        raw = bytes(memoryview(cursor.buffer)[start : cursor.position])
    else:
        size = count * struct.calcsize(SCALARS[element])
        if size > MAX_ARRAY_BYTES:
            cursor.fail(field, f"array of {size} bytes (limit {MAX_ARRAY_BYTES})", at=start - 8)
        raw = cursor.take(size, field)
    return MetadataArray(element, count, raw)


def _value_type(cursor: Cursor, field: str) -> ValueType:
    at = cursor.position
    number = cursor.u32(field)
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(field, f"unknown value type {number}", at=at)
