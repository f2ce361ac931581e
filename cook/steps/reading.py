"""Reads the files a recipe names: headers now, contents by hash; remembers what was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cook.formats.gguf import read_gguf
from cook.formats.gguf_file import GgufFile
from cook.graph.step import Source
from cook.hub import Located, locate
from cook.hub.convert import Converter
from cook.output import Output
from cook.provenance import HubOrigin
from cook.recipe.sources import HubRef


@dataclass(frozen=True)
class Model:
    """A model that a recipe names: its source in the graph and its header."""

    source: Source
    file: GgufFile


@dataclass(frozen=True)
class Reader:
    """``plan_only``: fetch and hash nothing that was not before. ``files``: everything read.

    ``converter`` is for safetensors models; ``output`` shows downloads and conversions.
    ``located`` keeps what each reference came to, so that a branch means one commit throughout.
    """

    plan_only: bool
    converter: Converter | None = None
    output: Output | None = None
    files: list[Path] = field(default_factory=list)
    located: dict[Path | HubRef, Located] = field(default_factory=dict)

    def model(self, ref: Path | HubRef, role: str = "model") -> Model:
        """A GGUF (all its shards), fetched or converted where need be."""
        found = self._find(ref, role)
        return Model(found.source, read_gguf(found.path))

    def text(self, ref: Path | HubRef, role: str = "text") -> Source:
        """Any other file, whole."""
        return self._find(ref, role).source

    @property
    def origins(self) -> tuple[HubOrigin, ...]:
        """What every ``hf://`` reference meant."""
        return tuple(f.origin for f in self.located.values() if f.origin is not None)

    @property
    def left_bytes(self) -> int:
        """What a build would download."""
        return sum(f.left_bytes for f in self.located.values())

    def _find(self, ref: Path | HubRef, role: str) -> Located:
        if ref not in self.located:
            self.located[ref] = locate(
                ref,
                plan_only=self.plan_only,
                role=role,
                output=self.output,
                converter=self.converter,
            )
            self.files.extend(self.located[ref].files)
        return self.located[ref]
