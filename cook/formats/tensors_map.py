"""``tensors.map``: what a repository of one-tensor shards holds, a line a shard.

``file:sha256:tensor:shape=(4096, 1024):dtype=iq1_kt:elements=4194304:bytes=917504``, where the
shape has ne0 first and a type that fell back is told as what it became; further ``name=value``
fields may follow, of which ``imatrix`` (the SHA-256 of the matrix's file) is kept. Written by
``gguf_info.py`` and signed by its publisher (https://github.com/Thireus/GGUF-Tool-Suite, whose
shards it describes). A map comes from elsewhere: every count and size is bounded, every figure
that follows from others is compared with them, and a fault says file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import NoReturn

from cook.errors import InputError
from cook.formats.cursor import shown
from cook.formats.gguf import MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS
from cook.formats.naming import split_name
from cook.formats.quant_types import QuantType, by_name

MAX_MAP_BYTES = 64 << 20
MAX_LINE = 4096
_MOST_ELEMENTS = (1 << 63) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHAPE = re.compile(r"\((\d{1,19}(?:, ?\d{1,19})*),?\)")
_NUMBER = re.compile(r"\d{1,19}")
PACKED = ".zbst"


@dataclass(frozen=True)
class MapEntry:
    """One shard: ``file`` holds ``tensor`` alone, and hashes to ``sha256`` (hexadecimal) whole.

    ``size_bytes`` of the tensor's data; ``imatrix`` None where it was quantized without.
    """

    line: int
    file: str
    sha256: str
    tensor: str
    shape: tuple[int, ...]
    type: str
    size_bytes: int
    imatrix: str | None


@dataclass(frozen=True, eq=False)
class TensorsMap:
    """A whole map, in its order; every tensor and every file once."""

    path: Path
    entries: tuple[MapEntry, ...]

    @cached_property
    def _by_tensor(self) -> Mapping[str, MapEntry]:
        return {entry.tensor: entry for entry in self.entries}

    def find(self, tensor: str) -> MapEntry | None:
        """The shard that holds ``tensor``, or None."""
        return self._by_tensor.get(tensor)


def read_tensors_map(path: Path) -> TensorsMap:
    """The map at ``path``; InputError with file, line and column for anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_MAP_BYTES:
            raise InputError(f"{path}: {size} bytes: no map has more than {MAX_MAP_BYTES}")
        text = path.read_bytes().decode("ascii")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - (error.object.rfind(b"\n", 0, error.start) + 1) + 1
        raise InputError(f"{path}:{line}:{column}: not plain text") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    entries: dict[str, MapEntry] = {}
    files: set[str] = set()
    for number, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        reader = _Line(path, number, content.rstrip("\r"))
        if len(entries) >= MAX_TENSORS:
            reader.fail(0, f"more than {MAX_TENSORS} tensors")
        entry = reader.entry()
        if entry.file in files:
            reader.fail(0, f"{shown(entry.file)} occurs twice")
        if entry.tensor in entries:
            reader.fail(2, f"{shown(entry.tensor)} occurs twice")
        files.add(entry.file)
        entries[entry.tensor] = entry
    if not entries:
        raise InputError(f"{path}:1:1: names no shard")
    return TensorsMap(path, tuple(entries.values()))


_FIELDS = ("file", "SHA-256", "tensor", "shape=", "dtype=", "elements=", "bytes=")


class _Line:
    """One line, field by field."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self.path, self.number = path, number
        if len(text) > MAX_LINE:
            self.fields: list[str] = [""]
            self.fail(0, f"a line of {len(text)} characters (at most {MAX_LINE})")
        self.fields = text.split(":")
        if len(self.fields) < len(_FIELDS):
            missing = _FIELDS[len(self.fields)]
            self.fail(len(self.fields) - 1, f"ends before its field {missing}")

    def fail(self, field: int, reason: str) -> NoReturn:
        """InputError at the beginning of a field, by its index."""
        column = sum(len(text) + 1 for text in self.fields[:field]) + 1
        raise InputError(f"{self.path}:{self.number}:{column}: {reason}")

    def entry(self) -> MapEntry:
        file, sha256, tensor = self.fields[:3]
        if file.endswith(PACKED):
            self.fail(0, f"{shown(file)}: packed shards ({PACKED}) are not read, plain .gguf is")
        if "/" in file or "\\" in file or not file.isprintable() or split_name(Path(file)) is None:
            self.fail(0, f"{shown(file)} is no name of a shard, NAME-00002-of-00321.gguf")
        if not _SHA256.fullmatch(sha256):
            self.fail(1, f"{shown(sha256)} is no SHA-256")
        if not 1 <= len(tensor) <= MAX_NAME_BYTES or not tensor.isprintable():
            self.fail(2, f"{shown(tensor)} is no name of a tensor")
        shape, kind = self._shape(), self._type()
        elements, size_bytes = self._number(5), self._number(6)
        if elements != prod(shape):
            self.fail(5, f"{elements} elements, and the shape {shape} has {prod(shape)}")
        self._check_size(kind, shape, size_bytes)
        return MapEntry(
            line=self.number,
            file=file,
            sha256=sha256,
            tensor=tensor,
            shape=shape,
            type=kind.name,
            size_bytes=kind.tensor_bytes(shape),
            imatrix=self._imatrix(),
        )

    def _value(self, field: int) -> str:
        """What follows the field's name."""
        name, text = _FIELDS[field], self.fields[field]
        if not text.startswith(name):
            self.fail(field, f"expected {name}, found {shown(text)}")
        return text.removeprefix(name)

    def _shape(self) -> tuple[int, ...]:
        text = self._value(3)
        found = _SHAPE.fullmatch(text)
        shape = tuple(int(n) for n in found[1].split(",")) if found else ()
        if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1 or prod(shape) > _MOST_ELEMENTS:
            self.fail(3, f"impossible shape {shown(text)}")
        return shape

    def _type(self) -> QuantType:
        text = self._value(4)
        try:
            return by_name(text)
        except InputError as error:
            self.fail(4, error.message)

    def _number(self, field: int) -> int:
        text = self._value(field)
        if not _NUMBER.fullmatch(text):
            self.fail(field, f"{shown(text)} is no number")
        return int(text)

    def _check_size(self, kind: QuantType, shape: tuple[int, ...], size_bytes: int) -> None:
        if shape[0] % kind.block:
            self.fail(3, f"rows of {shape[0]} do not divide into {kind.name}'s {kind.block}")
        exact = kind.tensor_bytes(shape)
        # Maps by gguf-py's own count leave out the scale of each row that ik's types have.
        without_scales = prod(shape) // kind.block * kind.block_bytes
        if size_bytes not in (exact, without_scales):
            self.fail(6, f"{size_bytes} bytes, and {kind.name} of this shape has {exact}")

    def _imatrix(self) -> str | None:
        for index, text in enumerate(self.fields[len(_FIELDS) :], len(_FIELDS)):
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                self.fail(index, f"expected name=value, found {shown(text)}")
            if name == "imatrix":
                if not _SHA256.fullmatch(value):
                    self.fail(index, f"{shown(value)} is no SHA-256")
                return value
        return None
