"""A quantized tensor that somebody else made: one shard of one tensor, in place of quantizing.

It enters the store as a piece like any other (:mod:`cook.steps.tensors`), but under a name of its
own: who published it and what its file hashes to, never taken for one that was quantized here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cook.errors import StepError
from cook.files import FileRange
from cook.formats.gguf import TensorInfo, read_shard
from cook.formats.quant_types import by_name
from cook.graph.piece import Piece
from cook.graph.step import JsonValue, Source
from cook.steps.tensors import tensor_piece


@dataclass(frozen=True)
class PublishedTensor:
    """``tensor`` as ``type``, in the file ``shard``, whose digest the publisher's map tells.

    ``publisher`` is the repository's owner and model, ``imatrix`` the SHA-256 of the matrix that
    it was quantized with, None where the map tells none.
    """

    tensor: str
    shape: tuple[int, ...]
    type: str
    shard: Source
    publisher: str
    imatrix: str | None

    def piece(self, source: Source, tensor: TensorInfo) -> Piece:
        """What the store calls it, as ``tensor`` of ``source``."""
        made_by = f"published:{self.publisher}:{self.shard.digest}"
        return tensor_piece(source, tensor, by_name(self.type), self.imatrix, made_by)

    def data(self) -> FileRange:
        """Where its data lies. StepError where the shard holds anything but what it should."""
        path = self.shard.path
        file = read_shard(path)
        found = [(t.name, t.shape, t.type_name.lower()) for t in file.tensors]
        wanted = (self.tensor, self.shape, self.type.lower())
        if found != [wanted]:
            held = "; ".join(f"{n} {s} {t}" for n, s, t in found[:2]) or "no tensor"
            if len(found) > 2:
                held += f" and {len(found) - 2} more"
            raise StepError(
                f"{path}: holds {held}, and its map says {wanted[0]} {wanted[1]} {self.type}",
                hint="leave out `tensors_from` to quantize this tensor here, and tell "
                f"{self.publisher.partition('/')[0]}",
            )
        return file.place(self.tensor)

    def copy(self, path: Path) -> None:
        """Write its data as ``path``."""
        data = self.data()
        with path.open("wb") as out:
            data.append_to(out)

    def in_key(self) -> JsonValue:
        """What of it decides a file's bytes, beside the shard's digest."""
        return [self.tensor, self.type, self.publisher, self.imatrix]
