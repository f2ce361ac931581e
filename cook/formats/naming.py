"""Community file names: the shards of a split GGUF (``llama_split_path`` in ``src/llama.cpp``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,10})-of-(?P<count>\d{5,10})\.gguf")

MAX_SHARDS = (1 << 16) - 1
"""``split.count`` has 16 bits."""


@dataclass(frozen=True)
class SplitName:
    """``<stem>-<number>-of-<count>.gguf``; ``number`` counts from 1."""

    stem: str
    number: int
    count: int


def split_name(path: Path) -> SplitName | None:
    """The parts of a shard's file name, or None if the name is not a shard's."""
    found = _SPLIT.fullmatch(path.name)
    if found is None:
        return None
    number, count = int(found["number"]), int(found["count"])
    return SplitName(found["stem"], number, count) if 1 <= number <= count <= MAX_SHARDS else None


def shard_path(path: Path, number: int, count: int) -> Path:
    """Where shard ``number`` (from 1) of ``count`` stands, next to ``path`` (a shard, or the stem).

    ``path`` may be any shard's path or ``<directory>/<stem>``.
    """
    name = split_name(path)
    stem = name.stem if name else path.name
    return path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")


def shards_of(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` is the file or any shard of, by their names alone."""
    name = split_name(path)
    if name is None:
        return (path,)
    return tuple(shard_path(path, number, name.count) for number in range(1, name.count + 1))


def model_stem(path: Path) -> str:
    """The file's name without ``.gguf`` and without the shard suffix."""
    name = split_name(path)
    return name.stem if name else path.name.removesuffix(".gguf")


@dataclass(frozen=True)
class ShardNames:
    """Names of a model published one tensor a file, in a repository for each type.

    As Thireus' ``quant_downloader.sh`` builds them. The number of a shard is its tensor's, the
    same in every type; number 1 holds the metadata alone.
    """

    publisher: str
    model: str

    def repository(self, type: str) -> str:
        """``Thireus/Qwen3-4B-THIREUS-IQ1_KT-SPECIAL_SPLIT``."""
        return f"{self.publisher}/{self._of(type)}-SPECIAL_SPLIT"

    def shard(self, type: str, number: int, count: int) -> str:
        """``Qwen3-4B-THIREUS-IQ1_KT-SPECIAL_TENSOR-00002-of-00399.gguf``."""
        return f"{self._of(type)}-SPECIAL_TENSOR-{number:05d}-of-{count:05d}.gguf"

    def _of(self, type: str) -> str:
        return f"{self.model}-{self.publisher.upper()}-{type.upper()}"
