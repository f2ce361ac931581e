"""Quantized tensors as pieces that candidates share.

What a quantized tensor is follows from the source's tensor, the type, the importance of its
columns, and the library that quantizes: it is called by these, and made once
(:mod:`cook.graph.piece`).
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cook.config import memory_bytes
from cook.engines.base import Engine
from cook.engines.process.system import memory_limit_bytes, peak_rss_bytes
from cook.errors import InputError, PrerequisiteError, StepError
from cook.files import FileRange
from cook.formats.gguf import TensorInfo, read_shard
from cook.formats.quant_types import Flavour, QuantType, by_name
from cook.formats.splice import ImatrixFacts
from cook.graph.piece import Piece
from cook.graph.step import JsonValue, Source, Workbench

if TYPE_CHECKING:
    from cook.engines.worker.messages import RowsOfTensor
    from cook.engines.worker.worker import Worker
    from cook.formats.arrays import Floats32
    from cook.formats.imatrix_file import Imatrix, ImatrixEntry

KIND = "tensor"
MEMORY_SHARE = 0.25
"""Of the machine's memory, what quantizing may use by default."""
SECONDS_A_WEIGHT = (
    ("iq1", 10e-6),
    ("iq2", 1e-6),
    ("iq3", 0.4e-6),
    ("iq4", 0.3e-6),
    ("_kt", 1.5e-6),
)
"""To quantize with importance on the reference machine: types whose values are searched for, by a
part of their names."""
OTHER_SECONDS_A_WEIGHT = 0.05e-6
_QUANTIZERS = ("libggml-base.", "libggml.")
"""The library that has ggml_quantize_chunk: mainline's, and ik's."""


def tensor_piece(
    source: Source, tensor: TensorInfo, type: QuantType, importance: str | None, quantizer: str
) -> Piece:
    """``tensor`` of ``source`` as ``type``; its file is the bare data, as it lies in a GGUF.

    ``importance``: SHA-256 of the float32 values of every column of every matrix, None without.
    ``quantizer`` names whatever made it of these: :func:`quantizer_of`, or a publisher.
    """
    return Piece(
        kind=KIND,
        label=f"{tensor.name} {type.name}",
        params={
            "tensor": tensor.name,
            "shape": list(tensor.shape),
            "type": type.name,
            "importance": importance,
            "quantizer": quantizer,
        },
        sources={"source": source.digest},
        size_bytes=type.tensor_bytes(tensor.shape),
        made_from={"source": {h.path.name: h.digest.removeprefix("sha256:") for h in source.files}},
    )


@dataclass(frozen=True)
class PublishedTensor:
    """A quantized tensor that another publisher made, in place of quantizing: ``tensor`` as
    ``type``, in the file ``shard``, whose digest is in the publisher's map.

    ``publisher`` is the repository's owner and model, ``imatrix`` the SHA-256 of the matrix that
    it was quantized with, None where the map has none.
    """

    tensor: str
    shape: tuple[int, ...]
    type: str
    shard: Source
    publisher: str
    imatrix: str | None

    def piece(self, source: Source, tensor: TensorInfo) -> Piece:
        """What the store calls it, as ``tensor`` of ``source``: never what was quantized here."""
        made_by = f"published:{self.publisher}:{self.shard.digest}"
        return tensor_piece(source, tensor, by_name(self.type), self.imatrix, made_by)

    def data(self) -> FileRange:
        """Where its data lies. StepError where the shard holds anything but what it should."""
        path = self.shard.path
        file = read_shard(path)
        found = [(t.name, t.shape, t.type_name.lower()) for t in file.tensors]
        if found != [(self.tensor, self.shape, self.type.lower())]:
            held = "; ".join(f"{n} {s} {t}" for n, s, t in found[:2]) or "no tensor"
            if len(found) > 2:
                held += f" and {len(found) - 2} more"
            raise StepError(
                f"{path}: holds {held}, and its map says {self.tensor} {self.shape} {self.type}",
                hint="leave out `tensors_from` to quantize this tensor here, and report it to "
                f"{self.publisher.partition('/')[0]}",
            )
        return file.place(self.tensor)

    def copy(self, path: Path) -> None:
        """Write its data as ``path``."""
        data = self.data()
        with path.open("wb") as out:
            data.append_to(out)

    def in_key(self) -> JsonValue:
        """What of it decides a file's bytes, next to the shard's digest."""
        return [self.tensor, self.type, self.publisher, self.imatrix]


def quantizer_of(engine: Engine) -> str:
    """SHA-256 of the library that quantizes; PrerequisiteError for an engine without one."""
    files = engine.facts.files
    for stem in _QUANTIZERS:
        if found := sorted(digest for name, digest in files.items() if name.startswith(stem)):
            return found[0]
    raise PrerequisiteError(f"engine {engine.name} has no library to quantize with")


@cache
def seconds_a_weight(tensor_type: str) -> float:
    """To quantize to ``tensor_type``, on the reference machine."""
    name = tensor_type.lower()
    known = (seconds for part, seconds in SECONDS_A_WEIGHT if part in name)
    return next(known, OTHER_SECONDS_A_WEIGHT)


class TensorQuantizer:
    """Quantizes tensors for a running step, and reports which share of ``total_bytes`` of their
    source is done.

    Its worker is there with the first tensor, and ``held`` from then on: where all are stored, none
    is needed.
    """

    def __init__(self, engine: Engine, bench: Workbench, held: ExitStack, total_bytes: int) -> None:
        self._engine, self._bench, self._held = engine, bench, held
        self._worker: Worker | None = None
        self._total_bytes, self._done_bytes = total_bytes, 0

    def quantize(self, rows: RowsOfTensor, path: Path) -> None:
        """Write the data of a tensor into ``path``; see :meth:`Worker.quantize`."""
        if self._worker is None:
            self._worker = self._held.enter_context(self._bench.workers.unloaded(self._engine))
        self._worker.quantize(
            rows,
            path,
            threads=self._bench.threads,
            memory_bytes=memory_bytes() or int(MEMORY_SHARE * memory_limit_bytes()),
            advance=self._advance,
        )

    def _advance(self, more_bytes: int) -> None:
        self._done_bytes += more_bytes
        self._bench.advance(min(1.0, self._done_bytes / self._total_bytes))

    @property
    def peak_rss_bytes(self) -> int | None:
        """None where no worker was needed."""
        return peak_rss_bytes(self._worker.pid) if self._worker is not None else None


@dataclass(frozen=True, eq=False)
class Importance:
    """The importance that ``flavour`` gives the tensors of a model, of an imatrix or none."""

    imatrix: Imatrix | None
    path: Path | None
    flavour: Flavour

    @classmethod
    def read(cls, path: Path | None, flavour: Flavour) -> Importance:
        """InputError for an imatrix that cannot be read."""
        from cook.formats.imatrix_file import read_imatrix

        return cls(read_imatrix(path) if path is not None else None, path, flavour)

    def of(self, tensor: TensorInfo) -> Floats32 | None:
        """Of every column of every matrix, one after another; None where there is none.

        InputError where the imatrix is of another model.
        """
        entry = self._entry(tensor)
        return entry.mean().ravel() if entry is not None else None

    def covers(self, tensor: TensorInfo) -> bool:
        """Whether there is any for ``tensor``; InputError likewise."""
        return self._entry(tensor) is not None

    def _entry(self, tensor: TensorInfo) -> ImatrixEntry | None:
        from cook.formats.imatrix_file import entry_for

        if self.imatrix is None:
            return None
        entry = entry_for(self.imatrix, tensor.name, self.flavour)
        if entry is None:
            return None
        needed = tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        if entry.sums.size != needed:
            if tensor.name == "token_embd.weight":  # the engines go on without
                return None
            raise InputError(
                f"{self.path}: {tensor.name} has {entry.sums.size} values, needs {needed}",
                hint="is it of another model?",
            )
        return entry

    def digest(self, tensor: TensorInfo) -> str | None:
        """SHA-256 of :meth:`of`."""
        found = self.of(tensor)
        return (
            hashlib.sha256(found.astype("<f4").tobytes()).hexdigest() if found is not None else None
        )

    @cached_property
    def whole(self) -> str | None:
        """SHA-256 over all of it, whatever the file is called and says of where it comes from."""
        if self.imatrix is None:
            return None
        digest = hashlib.sha256()
        for name, entry in sorted(self.imatrix.entries.items()):
            digest.update(name.encode() + b"\0" + entry.mean().astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def facts(self) -> ImatrixFacts | None:
        """What a quantized file says of it."""
        if self.imatrix is None or self.path is None:
            return None
        datasets = self.imatrix.datasets
        return ImatrixFacts(
            file=self.path.name,
            dataset=datasets[0] if datasets else None,
            entries=len(self.imatrix.entries),
            chunks=self.imatrix.chunk_count,
        )
