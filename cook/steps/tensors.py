"""Quantized tensors as pieces that candidates share.

What a quantized tensor is follows from the source's tensor, the type, the importance of its
columns, and the library that quantizes: it is named by these, and made once
(:mod:`cook.graph.piece`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
from cook.formats.gguf import GgufFile, TensorInfo, read_shard
from cook.formats.imatrix_file import Imatrix, entry_for, read_imatrix
from cook.formats.quant_types import Flavour, QuantType, by_id
from cook.graph.piece import FILE, Piece
from cook.graph.step import Source, Workbench

if TYPE_CHECKING:
    from cook.engines.worker.worker import Worker
    from cook.formats.arrays import Floats32

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


@dataclass(frozen=True, eq=False)
class Importance:
    """The importance that ``flavour`` gives the tensors of a model, by an imatrix; none without."""

    imatrix: Imatrix | None
    path: Path | None
    flavour: Flavour

    @classmethod
    def read(cls, path: Path | None, flavour: Flavour) -> Importance:
        """InputError for an imatrix that cannot be read."""
        return cls(read_imatrix(path) if path is not None else None, path, flavour)

    def of(self, tensor: TensorInfo) -> Floats32 | None:
        """Of every column of every matrix, one after another; None where there is none.

        InputError where the imatrix is of another model.
        """
        if self.imatrix is None:
            return None
        entry = entry_for(self.imatrix, tensor.name, self.flavour)
        needed = tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        if entry is not None and entry.sums.size == needed:
            return entry.mean().ravel()
        if entry is None or tensor.name == "token_embd.weight":  # the engines go on without
            return None
        raise InputError(
            f"{self.path}: {tensor.name} has {entry.sums.size} values, needs {needed}",
            hint="is it of another model?",
        )

    def digest(self, tensor: TensorInfo) -> str | None:
        """SHA-256 of :meth:`of`."""
        found = self.of(tensor)
        return None if found is None else hashlib.sha256(found.astype("<f4").tobytes()).hexdigest()

    @cached_property
    def whole(self) -> str | None:
        """SHA-256 over all of it, whatever the file's name and the paths in it."""
        if self.imatrix is None:
            return None
        digest = hashlib.sha256()
        for name, entry in sorted(self.imatrix.entries.items()):
            digest.update(name.encode() + b"\0" + entry.mean().astype("<f4").tobytes())
        return digest.hexdigest()


def make_tensors(
    engine: Engine,
    source: Source,
    file: GgufFile,
    types: Mapping[str, QuantType],
    bench: Workbench,
    *,
    importance: Importance | None = None,
    published: Mapping[str, PublishedTensor] | None = None,
) -> tuple[dict[str, FileRange], int | None]:
    """Where each tensor in ``types`` lies as that type, and the peak memory of the worker that
    quantized (None where none had to).

    They are tensors of ``file``, the header of ``source``, and are taken from the store or made
    now: copied where ``published``, else quantized by the library of ``engine``. PrerequisiteError
    for an engine without one.
    """
    theirs = published or {}
    pieces: dict[str, Piece] = {}
    for name, wanted in types.items():
        tensor = file.tensor(name)
        if (other := theirs.get(name)) is not None:
            digest, maker = other.imatrix, f"published:{other.publisher}:{other.shard.digest}"
        else:
            digest = importance.digest(tensor) if importance is not None else None
            maker = quantizer_of(engine)
        pieces[name] = tensor_piece(source, tensor, wanted, digest, maker)
    names = {piece.key: name for name, piece in pieces.items()}
    total_bytes = sum(file.place(name).size_bytes for name in types)
    done_bytes = 0
    held = ExitStack()
    workers: list[Worker] = []

    def advance(more_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += more_bytes
        bench.advance(min(1.0, done_bytes / total_bytes))

    def make(piece: Piece, path: Path) -> None:
        from cook.engines.worker.messages import RowsOfTensor

        name = names[piece.key]
        if name in theirs:
            with path.open("wb") as out:
                theirs[name].data().append_to(out)
            return
        tensor = file.tensor(name)
        source_type = by_id(tensor.type_id)
        assert source_type is not None, "its size is known"
        rows = RowsOfTensor(
            source=file.place(name),
            source_type=source_type,
            type=types[name],
            shape=tensor.shape,
            importance=importance.of(tensor) if importance is not None else None,
        )
        if not workers:  # where all are stored, none is needed
            workers.append(held.enter_context(bench.workers.unloaded(engine)))
        workers[0].quantize(
            rows,
            path,
            threads=bench.threads,
            memory_bytes=memory_bytes() or int(MEMORY_SHARE * memory_limit_bytes()),
            advance=advance,
        )

    with held:
        made = bench.pieces(pieces.values(), make)
        peak_bytes = peak_rss_bytes(workers[0].pid) if workers else None
    places = {
        name: FileRange(made[piece.key].file(FILE), 0, piece.size_bytes)
        for name, piece in pieces.items()
    }
    return places, peak_bytes
