"""``tensors.map``: what a repository of one-tensor shards holds, a line a shard.

``file:sha256:tensor:shape=(4096, 1024):dtype=iq1_kt:elements=4194304:bytes=917504``, where the
shape has ne0 first and a type that fell back stands as what it became; further ``name=value``
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
from cook.formats.cursor import read_text, shown
from cook.formats.gguf import MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS
from cook.formats.naming import split_name
from cook.formats.quant_types import by_name

MAX_MAP_BYTES = 64 << 20
MAX_LINE = 4096
_MOST_ELEMENTS = (1 << 63) - 1
_SHA256 = r"[0-9a-f]{64}"
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
    entries: dict[str, MapEntry] = {}
    files: set[str] = set()
    for number, content in enumerate(read_text(path, MAX_MAP_BYTES).split("\n"), 1):
        if not content.strip():
            continue
        line = _Line(path, number, content.rstrip("\r"))
        if len(entries) >= MAX_TENSORS:
            line.fail(0, f"more than {MAX_TENSORS} tensors")
        entry = line.entry()
        if entry.file in files:
            line.fail(0, f"{shown(entry.file)} occurs twice")
        if entry.tensor in entries:
            line.fail(2, f"{shown(entry.tensor)} occurs twice")
        files.add(entry.file)
        entries[entry.tensor] = entry
    if not entries:
        raise InputError(f"{path}:1:1: names no shard")
    return TensorsMap(path, tuple(entries.values()))


_NUMBER = r"\d{1,19}"
_FIELDS = (
    ("file", "", r"[^/\\]+\.gguf", "is no name of a shard, NAME-00002-of-00321.gguf"),
    ("SHA-256", "", _SHA256, "is no SHA-256"),
    ("tensor", "", rf"[ -~]{{1,{MAX_NAME_BYTES}}}", "is no name of a tensor"),
    ("shape=", "shape=", rf"\({_NUMBER}(, ?{_NUMBER})*,?\)", "is an impossible shape"),
    ("dtype=", "dtype=", ".*", ""),
    ("elements=", "elements=", _NUMBER, "is no number"),
    ("bytes=", "bytes=", _NUMBER, "is no number"),
)
"""Of a line: each field's name, how it begins, what follows, and what else is wrong."""


class _Line:
    """One line, field by field."""

    def __init__(self, path: Path, number: int, text: str) -> None:
        self.path, self.number = path, number
        self.fields = text.split(":")
        if len(text) > MAX_LINE:
            self.fail(0, f"a line of {len(text)} characters (at most {MAX_LINE})")
        if len(self.fields) < len(_FIELDS):
            missing = _FIELDS[len(self.fields)][0]
            self.fail(len(self.fields) - 1, f"ends before its field {missing}")

    def fail(self, field: int, reason: str) -> NoReturn:
        """InputError at the beginning of a field, by its index."""
        column = sum(len(text) + 1 for text in self.fields[:field]) + 1
        raise InputError(f"{self.path}:{self.number}:{column}: {reason}")

    def entry(self) -> MapEntry:
        if self.fields[0].endswith(PACKED):
            self.fail(0, f"packed shards ({PACKED}) are not read, plain .gguf is")
        values = []
        for index, (_, prefix, pattern, wrong) in enumerate(_FIELDS):
            text = self.fields[index]
            if not text.startswith(prefix):
                self.fail(index, f"expected {prefix}, found {shown(text)}")
            values.append(text.removeprefix(prefix))
            if not re.fullmatch(pattern, values[-1]):
                self.fail(index, f"{shown(values[-1])} {wrong}")
        file, sha256, tensor, dims, type_name, elements, size = values
        if not file.isprintable() or split_name(Path(file)) is None:
            self.fail(0, f"{shown(file)} {_FIELDS[0][3]}")
        shape = tuple(int(n) for n in dims.strip("(,)").split(","))
        if len(shape) > MAX_DIMS or min(shape) < 1 or prod(shape) > _MOST_ELEMENTS:
            self.fail(3, f"{shown(dims)} {_FIELDS[3][3]}")
        try:
            kind = by_name(type_name)
        except InputError as error:
            self.fail(4, error.message)
        if int(elements) != prod(shape):
            self.fail(5, f"{elements} elements, and the shape {shape} has {prod(shape)}")
        if shape[0] % kind.block:
            self.fail(3, f"rows of {shape[0]} do not divide into {kind.name}'s {kind.block}")
        exact = kind.tensor_bytes(shape)
        # Maps by gguf-py's own count leave out the scale of each row that ik's types have.
        without_scales = prod(shape) // kind.block * kind.block_bytes
        if int(size) not in (exact, without_scales):
            self.fail(6, f"{size} bytes, and {kind.name} of this shape has {exact}")
        imatrix = self._imatrix()
        return MapEntry(self.number, file, sha256, tensor, shape, kind.name, exact, imatrix)

    def _imatrix(self) -> str | None:
        for index, text in enumerate(self.fields[len(_FIELDS) :], len(_FIELDS)):
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                self.fail(index, f"expected name=value, found {shown(text)}")
            if name == "imatrix":
                if not re.fullmatch(_SHA256, value):
                    self.fail(index, f"{shown(value)} is no SHA-256")
                return value
        return None
