"""The model that a step's artifact is: one file, or the shards of a split one."""

from __future__ import annotations

from pathlib import Path

from cook.formats.naming import split_name
from cook.graph.step import Input, Source, Workbench
from cook.graph.store import Artifact

MODEL_FILE = "model.gguf"
"""Its name where it is one file; shards are called after it (``model-00001-of-00003.gguf``)."""


def model_paths(artifact: Artifact) -> tuple[Path, ...]:
    """Its files in order: an engine is given the first."""
    names = sorted(f.name for f in artifact.files if split_name(Path(f.name)) is not None)
    return tuple(artifact.file(name) for name in names or [MODEL_FILE])


def model_path(bench: Workbench, node: Input) -> Path:
    """The file of the model ``node`` to give to an engine: a source's, or a made one's first."""
    return node.path if isinstance(node, Source) else model_paths(bench.artifact(node))[0]
