"""Reads the files a recipe names: headers now, contents by hash; remembers what was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cook.formats.gguf import read_gguf
from cook.formats.gguf_file import GgufFile
from cook.graph.digest import source as digest_source
from cook.graph.step import Source
from cook.hub import local_path
from cook.recipe.sources import HubRef


@dataclass(frozen=True)
class Model:
    """A model that a recipe names: its source in the graph and its header."""

    source: Source
    file: GgufFile


@dataclass(frozen=True)
class Reader:
    """``plan_only``: hash nothing that was not hashed before. ``files``: everything read."""

    plan_only: bool
    files: list[Path] = field(default_factory=list)

    def model(self, ref: Path | HubRef) -> Model:
        """A GGUF (all its shards)."""
        file = read_gguf(local_path(ref))
        self.files.extend(file.shards)
        return Model(digest_source(file.shards, plan_only=self.plan_only), file)

    def text(self, ref: Path | HubRef) -> Source:
        """Any other file, whole."""
        path = local_path(ref)
        self.files.append(path)
        return digest_source([path], plan_only=self.plan_only)
