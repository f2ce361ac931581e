"""``tensors.map``: what a repository of one-tensor shards holds, a line a shard.

``file:sha256:tensor:shape=(4096, 1024):dtype=iq1_kt:elements=4194304:bytes=917504``, where the
shape has ne0 first and a type that fell back stands as what it became; further ``name=value``
fields may follow, of which ``imatrix`` (the SHA-256 of the matrix's file) is kept. Written by
``gguf_info.py`` and signed by its publisher (https://github.com/Thireus/GGUF-Tool-Suite, whose
shards it describes). A map comes from elsewhere: every count and size is bounded, every figure
that follows from others is compared with them, and a fault says file and line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from cook.errors import InputError
from cook.formats.cursor import read_text, shown
from cook.formats.gguf import MAX_DIMS, MAX_NAME_BYTES, MAX_TENSORS
from cook.formats.naming import split_name
from cook.formats.quant_types import by_name

MAX_MAP_BYTES = 64 << 20
MAX_LINE = 4096
_MOST_ELEMENTS = (1 << 63) - 1
_SHA256 = r"[0-9a-f]{64}"
_NUMBER = r"\d{1,19}"
PACKED = ".zbst"
_FIELDS = {
    "a shard's name": r"[^/\\]+\.gguf",
    "a SHA-256": _SHA256,
    "a tensor's name": rf"[ -~]{{1,{MAX_NAME_BYTES}}}",
    "shape=(NE0, ..)": rf"shape=\({_NUMBER}(, ?{_NUMBER})*,?\)",
    "dtype=TYPE": "dtype=.*",
    "elements=NUMBER": f"elements={_NUMBER}",
    "bytes=NUMBER": f"bytes={_NUMBER}",
}
"""Fields of a line, in their order, with their forms."""
_MORE = re.compile(rf"(?!imatrix=)[^\W\d]\w*=.*|imatrix={_SHA256}", re.ASCII)
"""A further field."""


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
    """A whole map, by tensor and in its order; every tensor and every file once."""

    path: Path
    entries: Mapping[str, MapEntry]


def read_tensors_map(path: Path) -> TensorsMap:
    """The map at ``path``; InputError with file and line for anything else."""
    entries: dict[str, MapEntry] = {}
    files: set[str] = set()
    for number, line in enumerate(read_text(path, MAX_MAP_BYTES).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = _entry(number, line.rstrip("\r"))
            if len(entries) >= MAX_TENSORS:
                raise InputError(f"more than {MAX_TENSORS} tensors")
            for name, known in ((entry.file, files), (entry.tensor, entries)):
                if name in known:
                    raise InputError(f"{shown(name)} occurs twice")
        except InputError as error:
            raise InputError(f"{path}:{number}: {error.message}", hint=error.hint) from None
        files.add(entry.file)
        entries[entry.tensor] = entry
    if not entries:
        raise InputError(f"{path}:1: names no shard")
    return TensorsMap(path, entries)


def _entry(number: int, line: str) -> MapEntry:
    """The shard of one line; InputError without its place."""
    if len(line) > MAX_LINE:
        raise InputError(f"a line of {len(line)} characters (at most {MAX_LINE})")
    fields = line.split(":")
    if fields[0].endswith(PACKED):
        raise InputError(f"packed shards ({PACKED}) are not read, plain .gguf is")
    for index, (what, pattern) in enumerate(_FIELDS.items()):
        text = fields[index] if index < len(fields) else ""
        if not text.isprintable() or not re.fullmatch(pattern, text):
            raise InputError(f"expected {what}, found {shown(text) if text else 'nothing'}")
    more = fields[len(_FIELDS) :]
    if wrong := [text for text in more if not _MORE.fullmatch(text)]:
        raise InputError(f"expected name=value (imatrix=SHA-256), found {shown(wrong[0])}")
    file, sha256, tensor, *figures = fields[: len(_FIELDS)]
    dims, type_name, elements, size = (text.partition("=")[2] for text in figures)
    if split_name(Path(file)) is None:
        raise InputError(f"{shown(file)} is no name of a shard, NAME-00002-of-00321.gguf")
    shape = tuple(int(n) for n in dims.strip("(,)").split(","))
    if len(shape) > MAX_DIMS or min(shape) < 1 or prod(shape) > _MOST_ELEMENTS:
        raise InputError(f"{shown(dims)} is an impossible shape")
    kind = by_name(type_name)
    if int(elements) != prod(shape):
        raise InputError(f"{elements} elements, and the shape {shape} has {prod(shape)}")
    exact = kind.tensor_bytes(shape)
    # Maps by gguf-py's own count leave out the scale of each row that ik's types have.
    if int(size) not in (exact, prod(shape) // kind.block * kind.block_bytes):
        raise InputError(f"{size} bytes, and {kind.name} of this shape has {exact}")
    imatrix = next((text.partition("=")[2] for text in more if text.startswith("imatrix=")), None)
    return MapEntry(number, file, sha256, tensor, shape, kind.name, exact, imatrix)
