"""A step: frozen inputs and parameters in, one artifact out, named by a key of its content.

Two steps with the same key make the same artifact, so the store keeps one. What only changes
how fast a step runs (threads, progress) stays out of the key; each step says why.

A step also says what it costs, in work that any machine does: models loaded, weights read, files
copied, counted on a reference machine that makes nominal seconds. What a machine makes of them is
learned from every step that it has run (:mod:`cook.job.plan`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_origin

from cook import files
from cook.engines.base import Engine, ModelArgs
from cook.engines.environment import user_settings
from cook.graph.store import as_read_back, key_of
from cook.provenance import machine

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from cook.engines.process.supervisor import Supervisor
    from cook.engines.worker.kept_workers import KeptWorkers
    from cook.graph.piece import Pieces
    from cook.graph.store import Artifact


# The reference machine: a few cores of a server with two channels of memory.
START_S = 0.4
"""A program started, its libraries loaded."""
LOAD_BYTES_S = 1.0e9
READ_BYTES_S = 8.0e9
"""Weights read to decode one token."""
DECODE_S = 4e-4
"""Of one decode, whatever the model: graphs, threads, sampling, the request."""
COMPUTE_BYTES_S = 40e9
"""Weights, two bytes each whatever their type, times tokens, of text read in batches."""
COPY_BYTES_S = 300e6


@dataclass(frozen=True)
class Cost:
    """The work of one step.

    ``loads``: bytes of each model that is loaded, which of steps that share a worker the first one
    does (:mod:`cook.engines.worker.kept_workers`); ``read_bytes`` of weights, for ``decodes``;
    ``computed_bytes``: two for each weight that a token is computed with, times tokens read in
    batches; ``arithmetic_s`` of other arithmetic, on the reference machine; ``copied_bytes`` of
    files. ``memory_bytes`` of the models that are in memory at once; None: of the largest that is
    loaded.
    """

    loads: tuple[float, ...] = ()
    read_bytes: float = 0.0
    decodes: float = 0.0
    computed_bytes: float = 0.0
    arithmetic_s: float = 0.0
    copied_bytes: float = 0.0
    memory_bytes: float | None = None

    @property
    def nominal_s(self) -> float:
        """Seconds on the reference machine."""
        return self.seconds(1.0, 1.0)

    @property
    def held_bytes(self) -> int:
        """Memory that its models take."""
        return round(max(self.loads, default=0) if self.memory_bytes is None else self.memory_bytes)

    def seconds(self, memory: float, processor: float) -> float:
        """Seconds on a machine whose memory and processor take so many times as long."""
        return (
            sum(self.loads) / LOAD_BYTES_S
            + self.read_bytes / READ_BYTES_S
            + self.copied_bytes / COPY_BYTES_S
        ) * memory + (
            START_S * max(len(self.loads), 1)
            + self.decodes * DECODE_S
            + self.computed_bytes / COMPUTE_BYTES_S
            + self.arithmetic_s
        ) * processor


R = TypeVar("R")

JsonValue = Any
"""A value that JSON can carry: None, bool, int, float, str, lists and string-keyed mappings."""


@dataclass(frozen=True)
class Source:
    """A file (or split model) of the user's, named by the hash of its bytes.

    ``digest`` starts with ``sha256:``; a plan over a huge source that was never hashed has a
    provisional ``header:`` digest (header bytes and size), which no stored artifact carries.
    """

    path: Path
    digest: str
    size_bytes: int
    files: tuple[files.HashedFile, ...] = field(default=(), compare=False, repr=False)
    """The file, or the shards, as they were when they were hashed; none where they were not."""

    @property
    def key(self) -> str:
        return self.digest

    @property
    def provisional(self) -> bool:
        return self.digest.startswith("header:")

    def require_unchanged(self) -> None:
        """InputError unless the bytes are still those that the digest is of."""
        for file in self.files:
            file.require_unchanged()


SMALL_BYTES = 512 << 20
"""Files up to this size are hashed even for a plan: it takes about a second."""


def source(paths: Sequence[Path], *, plan_only: bool = False) -> Source:
    """The source made of ``paths`` in order (several: the shards of one split model).

    With ``plan_only`` a large file that was never hashed gets a provisional ``header:`` digest.
    InputError where a file cannot be read, or is still being written.
    """
    size_bytes = sum(files.identity(path).size_bytes for path in paths)
    # Links stay: what the Hub's client keeps is a link with the model's name to a blob without.
    first = paths[0].absolute()
    # Hashing them would take longer than a plan may.
    if plan_only and any(
        files.identity(path).size_bytes > SMALL_BYTES and files.remembered_digest(path) is None
        for path in paths
    ):
        return Source(first, f"header:{_joined([_header(p) for p in paths])}", size_bytes)
    hashed = files.hash_files(paths)
    digests = [h.digest for h in hashed]
    return Source(first, digest_of_all(digests), size_bytes, hashed)


def digest_of_all(digests: Sequence[str]) -> str:
    """The digest of a model by those of its files, ``sha256:`` and all, in order."""
    return digests[0] if len(digests) == 1 else f"sha256:{_joined(digests)}"


def _joined(digests: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


HEADER_BYTES = 256 << 10
"""Read of each file for a provisional digest, which only plans carry."""


def _header(path: Path) -> str:
    with path.open("rb") as stream:
        head = hashlib.sha256(stream.read(HEADER_BYTES)).hexdigest()
    return f"{head}-{path.stat().st_size}"


@dataclass(frozen=True)
class Needs:
    """What a step takes of a machine while it runs, next to one of the ``--jobs`` places.

    ``device``: it loads something onto accelerators, whose free memory is not known.
    """

    memory_bytes: int = 0
    device: bool = False


@dataclass(frozen=True)
class Workbench:
    """What a running step may use.

    ``directory`` is private and empty: files left there become the artifact. Programs run under
    ``supervisor`` and end with the step; ``workers`` stay for the steps that follow. ``artifact``
    finds the finished artifact of an input step; ``pieces`` finds or makes what steps share;
    ``advance`` reports progress in [0, 1].
    """

    directory: Path
    supervisor: Supervisor
    workers: KeptWorkers
    artifact: Callable[[Step[Any]], Artifact]
    threads: int
    advance: Callable[[float], None]
    pieces: Pieces

    def file(self, node: Input, name: str) -> Path:
        """Path of ``node``'s bytes: the source itself, or file ``name`` of a step's artifact."""
        if isinstance(node, Source):
            return node.path
        return self.artifact(node).file(name)


@dataclass(frozen=True)
class Step(ABC, Generic[R]):
    """One unit of work. Subclasses are frozen dataclasses that add their fields: the steps and
    sources among them are the inputs, a field ``engine`` is the engine."""

    kind: ClassVar[str]
    phase: ClassVar[str] = ""
    """What of a build it belongs to, for people; not in the key."""
    version: ClassVar[int] = 1
    """Bump when the meaning of the result changes; part of the key."""
    timed: ClassVar[bool] = False
    """Timed steps run alone on the machine, and their key holds the machine."""
    optional: ClassVar[bool] = False
    """A failure is reported where its result would be, and fails no build."""
    in_worker: ClassVar[bool] = False
    """Its models run in ``bench.workers`` alone: no other program loads them."""
    result_type: ClassVar[type]
    """``R``; set by the subclass's bases."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in getattr(cls, "__orig_bases__", ()):
            origin, args = get_origin(base), get_args(base)
            if origin is not None and issubclass(origin, Step) and isinstance(args[0], type):
                cls.result_type = args[0]

    @property
    @abstractmethod
    def label(self) -> str:
        """How the plan calls it, e.g. ``convert model``."""

    def inputs(self) -> Mapping[str, Input]:
        """Named inputs; their keys are part of this step's key."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Step | Source)}

    @abstractmethod
    def params(self) -> Mapping[str, JsonValue]:
        """Everything else that decides the result."""

    @abstractmethod
    def run(self, bench: Workbench) -> R:
        """Do it: write files into ``bench.directory``, return the typed result."""

    def uses(self) -> Engine | None:
        """The engine whose build is part of the key, if any."""
        engine: Engine | None = getattr(self, "engine", None)
        return engine

    def cost(self) -> Cost | None:
        """What it costs; None where that cannot be known: a size that no header says."""
        return None

    def needs(self) -> Needs:
        """Memory for its models, and a device where any arguments of them name one."""
        cost = self.cost()
        values = (getattr(self, field.name) for field in fields(self))
        return Needs(cost.held_bytes if cost is not None else 0, any(map(_on_device, values)))

    def predicted_bytes(self) -> int | None:
        """Bytes the artifact will take, where known beforehand."""
        return 0

    def disk_bytes(self) -> int | None:
        """Of :meth:`predicted_bytes` those that are new on the disk, where it shares blocks."""
        return self.predicted_bytes()

    def shared_bytes(self) -> Mapping[Hashable, int]:
        """Bytes of every piece (:mod:`cook.graph.piece`) that it makes, where it is not stored; two
        steps' are one where they are equal."""
        return {}

    @cached_property
    def key_parts(self) -> Mapping[str, JsonValue]:
        """What the key is made of; the plan compares these to say why a step must run."""
        engine = self.uses()
        parts: dict[str, JsonValue] = {
            "kind": self.kind,
            "version": self.version,
            "engine": None,
            "params": dict(self.params()),
            "inputs": {name: node.key for name, node in sorted(self.inputs().items())},
        }
        if engine is not None:  # its bytes decide; flavour and build are for people
            of = engine.identity
            flavour = str(of.flavour)
            parts["engine"] = {"digest": of.digest, "flavour": flavour, "build": of.build}
        if self.timed:
            parts["machine"] = machine().digest
            if engine is not None and (given := user_settings()):
                parts["environment"] = dict(given)
        return as_read_back(parts)

    @cached_property
    def key(self) -> str:
        return key_of(self.key_parts)

    @cached_property
    def provisional(self) -> bool:
        """True when some source below was not hashed yet, so the key is not the final one."""
        return any(node.provisional for node in self.inputs().values())

    def steps(self) -> tuple[Step[Any], ...]:
        """Input steps (without sources)."""
        return tuple(node for node in self.inputs().values() if isinstance(node, Step))


_DEVICE_FLAGS = frozenset({"-ngl", "--gpu-layers", "--n-gpu-layers", "-dev", "--device", "--rpc"})


def _on_device(value: object) -> bool:
    """Whether arguments of a model name a device, or layers for one."""
    if isinstance(value, ModelArgs):
        return bool(value.n_gpu_layers or value.devices or value.rpc)
    words = value if isinstance(value, tuple) else ()
    return any(isinstance(word, str) and word in _DEVICE_FLAGS for word in words)


Input = Step[Any] | Source
"""What a step reads: an artifact of another step, or a file of the user's."""


def decode(step: Step[R], artifact: Artifact) -> R:
    """The typed result that ``step`` stored."""
    result: R = _reader(step.result_type).validate_python(artifact.result)
    return result


@cache
def _reader(result_type: type) -> TypeAdapter[Any]:
    """Kept: to make one takes far longer than to read a result with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(result_type)
