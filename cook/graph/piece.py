"""A piece: a file that steps share, made once and kept, named by all that decides its bytes.

A step knows its pieces only while it runs, so they are no steps of the plan: it asks the workbench
for those that it wants, and is given artifacts of the store like any other. Those that are not
stored are made then, one after the other, and stored some at a time, since to have a file outlast
a power cut costs the same for many as for one.

Where another cook is making a piece, this one goes on with the others and takes it when it is
there. It waits only while it holds nothing itself, so that no two wait for each other.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cook.errors import InternalError
from cook.files import fsync
from cook.graph.store import SYNCED_AT_ONCE, Artifact, Entry, Store, as_read_back, key_of
from cook.output import Output
from cook.signals import require_going_on

FILE = "data"
"""The one file of a piece's artifact."""
BATCH = 64
BATCH_BYTES = 1 << 30
BATCH_S = 20.0
"""A batch of pieces is stored when it is so many, so large, or so old: that is lost by a kill."""


@dataclass(frozen=True)
class Piece:
    """One file of ``size_bytes`` that is all of ``params`` and the bytes of ``sources`` (digests,
    ``sha256:`` and all, by name) make of it, whoever makes it.

    ``label`` is how ``cook store`` calls it; it is not in the key.
    """

    kind: str
    label: str
    params: Mapping[str, Any]
    sources: Mapping[str, str]
    size_bytes: int
    version: int = 1
    made_from: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """SHA-256 by name of the files behind each source, where they were several."""

    @cached_property
    def key_parts(self) -> Mapping[str, Any]:
        """What the key is made of, in the form of a step's."""
        return as_read_back(
            {
                "kind": self.kind,
                "version": self.version,
                "engine": None,
                "params": dict(self.params),
                "inputs": dict(sorted(self.sources.items())),
            }
        )

    @cached_property
    def key(self) -> str:
        return key_of(self.key_parts)


Make = Callable[[Piece, Path], None]
"""Writes a piece's file, all of its ``size_bytes``."""


class Pieces:
    """The pieces of one running step: found in ``store``, or made.

    ``repeated``: where all is made again, stored or not, the keys of those that were already; the
    steps of a run share it. ``used`` and ``made`` are the keys of the pieces that the step was
    given, and of those among them that it made itself.
    """

    def __init__(self, store: Store, output: Output, repeated: set[str] | None = None) -> None:
        self._store, self._output, self._repeated = store, output, repeated
        self.used: set[str] = set()
        self.made: set[str] = set()

    def __call__(self, wanted: Iterable[Piece], make: Make) -> Mapping[str, Artifact]:
        """The artifacts of ``wanted`` by key; ``make`` writes what is not stored.

        What ``make`` raises is raised, after what it finished was stored.
        """
        pieces = {piece.key: piece for piece in wanted}
        found: dict[str, Artifact] = {}
        left = [p for p in pieces.values() if not self._find(p, found)]
        while left:
            busy = self._batch(left, make, found)
            if len(busy) == len(left):  # another cook makes each of them
                said = f"{busy[0].label}: waiting, another step or another cook is making it"
                waiting = partial(self._output.say, said)
                with self._store.locked(busy[0].kind, busy[0].key, waiting):
                    pass
            left = [p for p in left if p.key not in found and not self._find(p, found)]
        self.used |= found.keys()
        return {key: found[key] for key in pieces}

    def _find(self, piece: Piece, found: dict[str, Artifact]) -> bool:
        if self._repeated is not None and piece.key not in self._repeated:
            return False
        artifact = self._store.find(piece.kind, piece.key)
        if artifact is None:
            return False
        if (fault := self._store.damage(artifact)) is not None:
            self._output.warn(f"{piece.label}: {fault.path} {fault.message}; it is made again")
            return False
        found[piece.key] = artifact
        return True

    def _batch(
        self, wanted: Sequence[Piece], make: Make, found: dict[str, Artifact]
    ) -> list[Piece]:
        """Make and store some of ``wanted``; those that another cook is making are returned."""
        busy: list[Piece] = []
        with ExitStack() as held:
            directory = held.enter_context(self._store.workspace())
            disk = held.enter_context(ThreadPoolExecutor(SYNCED_AT_ONCE))
            ready: list[tuple[Path, Entry]] = []
            written: list[Future[None]] = []
            size, began = 0, time.monotonic()
            try:
                for piece in wanted:
                    require_going_on()
                    if not held.enter_context(self._store.locked_if_free(piece.kind, piece.key)):
                        busy.append(piece)
                        continue
                    if self._find(piece, found):  # another cook was faster
                        continue
                    ready.append(self._make(piece, directory / piece.key, make))
                    # The disk is done with most of it when the last is made.
                    written.append(disk.submit(fsync, directory / piece.key / FILE))
                    size += piece.size_bytes
                    old = time.monotonic() - began >= BATCH_S
                    if len(ready) >= BATCH or size >= BATCH_BYTES or old:
                        break
            finally:
                # What is whole outlasts what the next one failed with.
                for each in written:
                    each.result()
                for artifact in self._store.commit_all(ready):
                    found[artifact.key] = artifact
                    self.made.add(artifact.key)
                    if self._repeated is not None:
                        self._repeated.add(artifact.key)
        return busy

    def _make(self, piece: Piece, folder: Path, make: Make) -> tuple[Path, Entry]:
        folder.mkdir()
        file = folder / FILE
        started = time.monotonic()
        try:
            make(piece, file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # those before it may need the room
            raise
        seconds = time.monotonic() - started
        if (size := file.stat().st_size) != piece.size_bytes:
            raise InternalError(f"{piece.label}: {size} bytes were made, not {piece.size_bytes}")
        entry = Entry(
            kind=piece.kind,
            key=piece.key,
            label=piece.label,
            key_parts=piece.key_parts,
            made_from=piece.made_from,
            result={},
            seconds=seconds,
        )
        return folder, entry
