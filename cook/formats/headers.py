"""Headers of models, each read once while its files stay as they are.

A plan asks for the header of one source in many places: what its tensors are, how large, how much
of them a token touches. Of a model of terabytes that is dozens of files and a vocabulary each time.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cook.errors import CookError
from cook.files import Identity, identity
from cook.formats.gguf import GgufFile, read_gguf
from cook.formats.naming import shards_of

KEPT = 16
"""Headers in memory at most: one with a large vocabulary takes some 10 MB."""


def header(path: Path) -> GgufFile:
    """:func:`cook.formats.gguf.read_gguf` of the model at ``path``, read anew where any of its
    shards is another file than before. InputError likewise."""
    # A shard that is missing is told below.
    shards = [file for file in shards_of(path) if file.exists()]
    return _read(path, tuple(identity(file) for file in shards or [path]))


def header_if_there(path: Path) -> GgufFile | None:
    """:func:`header`, or None for a file that is not there yet or is no model."""
    try:
        return header(path)
    except CookError:
        return None


@lru_cache(maxsize=KEPT)
def _read(path: Path, files: tuple[Identity, ...]) -> GgufFile:
    return read_gguf(path)
