"""A model as a step has it: a source, or what another step made, one file or shards."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cook.engines.base import QuantizeResult
from cook.formats.gguf import read_gguf
from cook.formats.naming import split_name
from cook.graph.step import Input, Source, Step, Workbench, digest_of_all
from cook.graph.store import Artifact, StoredFile
from cook.steps.phase import Phase

MODEL_FILE = "model.gguf"
"""Its name where it is one file; shards are called after it (``model-00001-of-00003.gguf``)."""


@dataclass(frozen=True)
class ModelStep(Step[QuantizeResult]):
    """A step whose artifact is a model, made of another."""

    phase: ClassVar[str] = Phase.QUANTIZE

    @property
    @abstractmethod
    def origin(self) -> Input:
        """The model that it is made of."""

    def computed_share(self) -> float:
        """How much of the origin's arithmetic is left; changing types saves none."""
        return 1.0


def _model_files(artifact: Artifact) -> tuple[StoredFile, ...]:
    shards = [f for f in artifact.files if split_name(Path(f.name)) is not None]
    return tuple(sorted(shards, key=lambda f: f.name)) or tuple(
        f for f in artifact.files if f.name == MODEL_FILE
    )


def model_paths(artifact: Artifact) -> tuple[Path, ...]:
    """Its files in order: an engine is given the first."""
    return tuple(artifact.file(f.name) for f in _model_files(artifact))


def model_digest(artifact: Artifact) -> str:
    """Of its bytes, as the digest of a :class:`Source` of the same files."""
    return digest_of_all([f"sha256:{f.sha256}" for f in _model_files(artifact)])


def made_bytes(bench: Workbench, node: Input) -> int:
    """Size of the model ``node``, all its files."""
    if isinstance(node, Source):
        return node.size_bytes
    return sum(f.size_bytes for f in _model_files(bench.artifact(node)))


def model_path(bench: Workbench, node: Input) -> Path:
    """The file of the model ``node`` to give to an engine: a source's, or a made one's first."""
    return node.path if isinstance(node, Source) else model_paths(bench.artifact(node))[0]


def written_model(
    path: Path, started: float, command: tuple[str, ...], peak_rss_bytes: int | None = None
) -> QuantizeResult:
    """What a step says of the model that it wrote as ``path``, ``started`` as
    ``time.monotonic()`` has it."""
    tensors = read_gguf(path).tensors
    return QuantizeResult(
        types={tensor.name: tensor.type_name for tensor in tensors},
        tensor_bytes=sum(tensor.size_bytes or 0 for tensor in tensors),
        seconds=time.monotonic() - started,
        peak_rss_bytes=peak_rss_bytes,
        command=command,
    )
