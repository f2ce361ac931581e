"""The store: artifacts named by key, each whole or absent.

An artifact is a directory ``store/<kind>/<key>`` holding its files and ``artifact.json``, which
lists every file's size and SHA-256 and carries one of its own. It is made in ``store/tmp``,
hashed, fsynced, and renamed into place as the last act, so neither kill -9 nor a second cook can
leave half of one. It also says what it was made from, so that what is found to be damaged can be
removed with all that was made of it. A key is a hash of all that decides the content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cook import files
from cook.errors import InputError
from cook.graph.locks import file_lock, file_lock_if_free, sweep
from cook.provenance import cook_version, machine
from cook.signals import signals_deferred


def as_read_back(parts: Mapping[str, Any]) -> dict[str, Any]:
    """``parts`` as JSON returns them, so that what is stored compares equal to what is asked."""
    normal: dict[str, Any] = json.loads(json.dumps(parts, allow_nan=False))
    return normal


def key_of(parts: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of ``parts`` as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


FORMAT = 1
META = "artifact.json"
SEAL = "sha256"
"""The hash in ``artifact.json`` over all else that is in it."""
SHARED_S = 60.0
"""A network file system may show a file late to machines that looked before it was there."""
SYNCED_AT_ONCE = 8
MEND = "`cook store verify --mend` removes what is damaged; the next build makes it again"
"""The hint where a stored file is not what it was."""


@dataclass(frozen=True)
class StoredFile:
    """One file of an artifact."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is written down of an artifact. ``result`` is the step's result as JSON.

    ``made_from``: by an input's name, the SHA-256 of each of its files as they were used
    (checked then).
    """

    kind: str
    key: str
    label: str
    key_parts: Mapping[str, Any]
    made_from: Mapping[str, Mapping[str, str]]
    result: Mapping[str, Any]
    seconds: float
    nominal_s: float | None = None
    """Seconds of a reference machine by the step's cost; None where that was not known."""
    pieces: frozenset[str] = frozenset()
    """Keys of the artifacts that it was put together from, next to its inputs
    (:mod:`cook.graph.piece`)."""


@dataclass(frozen=True, kw_only=True)
class Artifact(Entry):
    """A finished artifact on disk."""

    directory: Path
    files: tuple[StoredFile, ...]
    created: str

    @property
    def size_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files)

    @property
    def meta(self) -> Path:
        """The file that describes the artifact."""
        return self.directory / META

    def file(self, name: str) -> Path:
        """Path of one file; InputError when the artifact has none of that name."""
        if not any(f.name == name for f in self.files):
            raise InputError(f"{self.directory}: artifact has no file {name!r}")
        return self.directory / name


@dataclass(frozen=True)
class Fault:
    """Something in the store, or a source of the user's, that is not what is on record.

    ``keys`` are the names under which others were made from it (the artifact's key, the digests
    of its files). ``directory``: the artifact's, None where it is none.
    """

    path: Path
    message: str
    keys: frozenset[str] = frozenset()
    directory: Path | None = None


class Store:
    """All artifacts under ``root`` (``COOK_HOME/store``)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks_swept = False

    def path(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def find(self, kind: str, key: str) -> Artifact | None:
        """The artifact, if it is there and every file still has its recorded size.

        What the files hold is looked at by :meth:`damage`, before anything is made from them.
        """
        directory = self.path(kind, key)
        artifact = _read(directory)
        if artifact is None or artifact.key != key:
            return None
        for stored in artifact.files:
            try:
                if (directory / stored.name).stat().st_size != stored.size_bytes:
                    return None
            except OSError:
                return None
        return artifact

    def awaited(self, kind: str, key: str, timeout_s: float = SHARED_S) -> Artifact | None:
        """:meth:`find`, of what another machine has committed: it may not show at once."""
        until = time.monotonic() + timeout_s
        while True:
            with suppress(OSError):  # to list the folder makes a client of NFS look again
                os.listdir(self.root / kind)  # noqa: PTH208
            artifact = self.find(kind, key)
            if artifact is not None or time.monotonic() >= until:
                return artifact
            time.sleep(0.1)

    def locked(
        self, kind: str, key: str, waiting: Callable[[], None] | None = None
    ) -> AbstractContextManager[None]:
        """Hold the right to make this artifact; after taking it, look again with ``find``."""
        return file_lock(self._lock(kind, key), waiting)

    def locked_if_free(self, kind: str, key: str) -> AbstractContextManager[bool]:
        """:meth:`locked` without waiting: False where another is making it."""
        return file_lock_if_free(self._lock(kind, key))

    def _lock(self, kind: str, key: str) -> Path:
        return self.root / "locks" / f"{kind}-{key}.lock"

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory to make an artifact in; removed unless it was committed."""
        self.sweep_workspaces()
        directory = self.root / "tmp" / uuid.uuid4().hex
        with file_lock(directory.with_suffix(".lock")):
            try:
                directory.mkdir(parents=True)
                yield directory
            finally:
                with signals_deferred():
                    shutil.rmtree(directory, ignore_errors=True)

    def commit(self, workspace: Path, entry: Entry) -> Artifact:
        """Hash and fsync everything in ``workspace``, then rename it into place."""
        (artifact,) = self.commit_all([(workspace, entry)])
        return artifact

    def commit_all(self, made: Sequence[tuple[Path, Entry]]) -> tuple[Artifact, ...]:
        """:meth:`commit` for many directories: all synced before the first is renamed, which
        costs hardly more than one."""
        data = {d: sorted(p for p in d.iterdir() if p.is_file()) for d, _ in made}
        every = [path for paths in data.values() for path in paths]
        # Many small files are synced at once in little more than the time of one: they share a
        # commit of the file system's journal. And the disk writes what is being hashed meanwhile.
        with ThreadPoolExecutor(SYNCED_AT_ONCE) as disk, ThreadPoolExecutor() as processor:
            synced = disk.map(files.fsync, every)
            hashed = dict(zip(every, processor.map(files.hash_file, every), strict=True))
            metas = [
                _describe(directory, [hashed[path] for path in data[directory]], entry)
                for directory, entry in made
            ]
            for done in (synced, disk.map(files.fsync, [*metas, *data])):
                deque(done, maxlen=0)  # raises what one of them raised
        targets = [self.path(entry.kind, entry.key) for _, entry in made]
        for (directory, _), target in zip(made, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # damaged or stale: `find` refused it, so it may go
                self._discard(target)
            directory.rename(target)
        for parent in {target.parent for target in targets}:
            files.fsync(parent)
        stored = tuple(artifact for target in targets if (artifact := _read(target)) is not None)
        assert len(stored) == len(targets), "artifacts just committed must be readable"
        for artifact in stored:
            for file in artifact.files:
                files.remember(artifact.file(file.name), f"sha256:{file.sha256}")
        return stored

    def entries(self) -> Iterator[Artifact]:
        """Every readable artifact."""
        for directory in self._directories():
            if (artifact := _read(directory)) is not None:
                yield artifact

    def damage(self, artifact: Artifact) -> Fault | None:
        """The first file that is not what was recorded.

        A file is read where its identity is none that was hashed on this machine before, so
        the look is cheap until something changed it (or the store was copied here).
        """
        for stored in artifact.files:
            path = artifact.directory / stored.name
            try:
                size = files.identity(path).size_bytes
                if size != stored.size_bytes:
                    message = f"has {size} bytes, recorded {stored.size_bytes}"
                elif files.digest(path) != f"sha256:{stored.sha256}":
                    message = "has other content than was recorded"
                else:
                    continue
            except InputError as error:
                message = error.message.removeprefix(f"{path}: ")
            return Fault(path, message, _names(artifact), artifact.directory)
        return None

    def verify(self) -> Iterator[Fault]:
        """Hash every file of every artifact again, and every source that was ever hashed."""
        files.distrust_older_digests()
        for directory in self._directories():
            artifact = _read(directory)
            if artifact is None:
                message = f"{META} is missing, unreadable, or not as it was written"
                yield Fault(directory, message, frozenset({directory.name}), directory)
                continue
            keys = _names(artifact) | {directory.name}
            if artifact.key != directory.name:
                message = f"is recorded under another key, {artifact.key}"
                yield Fault(directory, message, keys, directory)
            if key_of(artifact.key_parts) != artifact.key:
                message = "its key does not follow from its recorded inputs"
                yield Fault(directory, message, keys, directory)
            known = {META} | {f.name for f in artifact.files}
            for extra in sorted({p.name for p in directory.iterdir()} - known):
                yield Fault(directory / extra, "is not part of the artifact")
            if (fault := self.damage(artifact)) is not None:
                yield fault
        for wrong in files.verify_memory(besides=self.root):
            yield Fault(
                wrong.path,
                "has other content than when it was hashed, though nothing else shows it",
                frozenset({wrong.remembered}),
            )

    def made_from(self, faults: Iterable[Fault]) -> tuple[Artifact, ...]:
        """Every artifact that was made from what is at fault, directly or not; without itself."""
        faults = tuple(faults)
        tainted = frozenset(key for fault in faults for key in fault.keys)
        at_fault = {fault.directory for fault in faults}
        left = [a for a in self.entries() if a.directory not in at_fault]
        found: list[Artifact] = []
        while further := [a for a in left if not tainted.isdisjoint(_inputs(a))]:
            found += further
            left = [a for a in left if a not in further]
            tainted = frozenset().union(*map(_names, further))
        return tuple(found)

    def mend(self, faults: Iterable[Fault]) -> tuple[Artifact, ...]:
        """Remove what is at fault and everything that was made from it; the latter is returned.

        A build makes all of it again. A file of the user's is left alone.
        """
        faults = tuple(faults)
        spoilt = self.made_from(faults)
        directories = {f.directory for f in faults if f.directory is not None}
        for directory in sorted(directories | {a.directory for a in spoilt}):
            self.remove(directory)
        for stray in (f.path for f in faults if f.directory is None and not f.keys):
            self._discard(stray)
        return spoilt

    def users(self) -> Mapping[str, tuple[Artifact, ...]]:
        """By a piece's key, the artifacts that were put together from it."""
        found: dict[str, list[Artifact]] = {}
        for artifact in self.entries():
            for key in artifact.pieces:
                found.setdefault(key, []).append(artifact)
        return {key: tuple(users) for key, users in found.items()}

    def remove(self, directory: Path) -> None:
        """Delete one artifact, after waiting for a cook that is making it right now."""
        with self.locked(directory.parent.name, directory.name):
            self._discard(directory)

    def _discard(self, path: Path) -> None:
        """Delete a file or directory: gone under its name at once, or not at all."""
        trash = self.root / "tmp" / f"{uuid.uuid4().hex}.old"
        trash.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another cook was faster
            path.rename(trash)
            _delete(trash)

    def sweep_workspaces(self) -> int:
        """Remove workspaces whose process died; returns how many bytes that freed."""
        freed = 0
        if not self._locks_swept:
            self._locks_swept = True
            sweep(self.root / "locks")
        tmp = self.root / "tmp"
        found = list(tmp.iterdir()) if tmp.is_dir() else []
        for path in found:
            # Whoever makes a workspace holds its lock before it is there; so does who removes it,
            # as others may sweep as well.
            with file_lock_if_free(path.with_suffix(".lock")) as free:
                if free and path.suffix != ".lock":
                    # Some files may be going at the moment (an `.old` by who put it there).
                    for parent, _, names in os.walk(path):
                        for name in names:
                            with suppress(FileNotFoundError):
                                freed += Path(parent, name).lstat().st_size
                    _delete(path)
        return freed

    def _directories(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for kind in sorted(self.root.iterdir()):
            if kind.is_dir() and kind.name not in ("tmp", "locks"):
                yield from sorted(p for p in kind.iterdir() if p.is_dir())


def _describe(directory: Path, found: Sequence[files.HashedFile], entry: Entry) -> Path:
    """Write ``artifact.json`` of the files ``found``; its path."""
    document = {
        **asdict(entry),
        "format": FORMAT,
        "pieces": sorted(entry.pieces),
        "files": [
            {
                "name": file.path.name,
                "size_bytes": file.identity.size_bytes,
                "sha256": file.digest.removeprefix("sha256:"),
            }
            for file in found
        ],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cook": cook_version(),
        "machine": machine().digest,
    }
    # As it will be read back: the seal is of what a reader sees.
    document = as_read_back(document)
    document[SEAL] = _seal(document)
    meta = directory / META
    meta.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False))
    return meta


def recorded_sha256(path: Path) -> str | None:
    """What was written down of a stored file when it was made; None for any other file."""
    artifact = _read(path.parent)
    listed = {f.name: f.sha256 for f in artifact.files} if artifact else {}
    return listed.get(path.name)


def _read(directory: Path) -> Artifact | None:
    meta = directory / META
    if not meta.is_file():  # opening a pipe would wait for ever
        return None
    try:
        document = json.loads(meta.read_text())
        if document["format"] != FORMAT or document[SEAL] != _seal(document):
            return None
        known = {field.name for field in fields(Entry)} & document.keys()
        entry = {name: document[name] for name in known}
        return Artifact(
            **{**entry, "pieces": frozenset(document.get("pieces", ()))},
            directory=directory,
            files=tuple(StoredFile(**file) for file in document["files"]),
            created=document["created"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _names(artifact: Artifact) -> frozenset[str]:
    """What an artifact is called where it is an input: its key; a file of it, by its digest."""
    return frozenset({artifact.key, *(f"sha256:{f.sha256}" for f in artifact.files)})


def _inputs(artifact: Artifact) -> frozenset[str]:
    """What an artifact was made from: keys of others, digests of files of sources, pieces."""
    inputs: Mapping[str, str] = artifact.key_parts.get("inputs", {})
    sources = (name for name, key in inputs.items() if key.startswith("sha256:"))
    shards = (h for name in sources for h in artifact.made_from.get(name, {}).values())
    return frozenset({*inputs.values(), *(f"sha256:{h}" for h in shards), *artifact.pieces})


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _seal(document: Mapping[str, Any]) -> str:
    """The hash over a whole ``artifact.json`` but for the seal itself."""
    return key_of({name: value for name, value in document.items() if name != SEAL})
