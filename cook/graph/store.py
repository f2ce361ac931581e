"""The store: artifacts named by key, each whole or absent.

An artifact is a directory ``store/<kind>/<key>`` holding its files and ``artifact.json``, which
lists every file's size and SHA-256. It is made in ``store/tmp``, hashed, fsynced, and renamed
into place as the last act, so neither kill -9 nor a second cook can leave half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.errors import InputError
from cook.graph.digest import file_sha256
from cook.graph.locks import file_lock, is_locked
from cook.provenance import cook_version, machine

FORMAT = 1
META = "artifact.json"


@dataclass(frozen=True)
class StoredFile:
    """One file of an artifact."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Artifact:
    """A finished artifact on disk. ``result`` is the step's result as JSON."""

    directory: Path
    kind: str
    key: str
    label: str
    key_parts: Mapping[str, Any]
    result: Mapping[str, Any]
    files: tuple[StoredFile, ...]
    seconds: float
    work: float | None
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
    """Something in the store that is not what its record says."""

    path: Path
    message: str


class Store:
    """All artifacts under ``root`` (``COOK_HOME/store``)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def find(self, kind: str, key: str) -> Artifact | None:
        """The artifact, if it is there and every file still has its recorded size."""
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

    @contextmanager
    def locked(
        self, kind: str, key: str, waiting: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Hold the right to make this artifact; after taking it, look again with ``find``."""
        with file_lock(self.root / "locks" / f"{kind}-{key}.lock", waiting):
            yield

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory to make an artifact in; removed unless it was committed."""
        self.sweep_workspaces()
        directory = self.root / "tmp" / uuid.uuid4().hex
        with file_lock(directory.with_suffix(".lock")):
            directory.mkdir(parents=True)
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)
                directory.with_suffix(".lock").unlink(missing_ok=True)

    def commit(
        self,
        workspace: Path,
        *,
        kind: str,
        key: str,
        label: str,
        key_parts: Mapping[str, Any],
        result: Mapping[str, Any],
        seconds: float,
        work: float | None,
    ) -> Artifact:
        """Hash and fsync everything in ``workspace``, then rename it into place."""
        files = []
        for path in sorted(p for p in workspace.iterdir() if p.is_file()):
            _fsync(path)
            size = path.stat().st_size
            files.append({"name": path.name, "size_bytes": size, "sha256": file_sha256(path)})
        document = {
            "format": FORMAT,
            "kind": kind,
            "key": key,
            "label": label,
            "key_parts": key_parts,
            "result": result,
            "files": files,
            "seconds": seconds,
            "work": work,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cook": cook_version(),
            "machine": machine().digest,
        }
        meta = workspace / META
        meta.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False))
        _fsync(meta)
        _fsync(workspace)
        target = self.path(kind, key)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # damaged or stale: `find` refused it, so it may go
            discarded = self.root / "tmp" / f"{uuid.uuid4().hex}.old"
            target.rename(discarded)
            shutil.rmtree(discarded, ignore_errors=True)
        workspace.rename(target)
        _fsync(target.parent)
        artifact = _read(target)
        assert artifact is not None, "an artifact just committed must be readable"
        return artifact

    def entries(self) -> Iterator[Artifact]:
        """Every readable artifact."""
        for directory in self._directories():
            if (artifact := _read(directory)) is not None:
                yield artifact

    def verify(self) -> Iterator[Fault]:
        """Re-hash every file of every artifact."""
        for directory in self._directories():
            artifact = _read(directory)
            if artifact is None:
                yield Fault(directory, f"{META} is missing or unreadable")
                continue
            if artifact.key != directory.name:
                yield Fault(directory, f"is recorded under another key, {artifact.key}")
            if _key_of(artifact.key_parts) != artifact.key:
                yield Fault(directory, "its key does not follow from its recorded inputs")
            known = {META} | {f.name for f in artifact.files}
            for extra in sorted({p.name for p in directory.iterdir()} - known):
                yield Fault(directory / extra, "is not part of the artifact")
            for stored in artifact.files:
                path = directory / stored.name
                if not path.is_file():
                    yield Fault(path, "is missing")
                elif path.stat().st_size != stored.size_bytes:
                    yield Fault(
                        path, f"has {path.stat().st_size} bytes, recorded {stored.size_bytes}"
                    )
                elif file_sha256(path) != stored.sha256:
                    yield Fault(path, "has other content than was recorded")

    def remove(self, artifact: Artifact) -> None:
        """Delete one artifact; whoever is making it right now is waited for."""
        with self.locked(artifact.kind, artifact.key):
            trash = self.root / "tmp" / f"{uuid.uuid4().hex}.old"
            trash.parent.mkdir(parents=True, exist_ok=True)
            artifact.directory.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep_workspaces(self) -> int:
        """Remove workspaces whose process died; returns how many bytes that freed."""
        freed = 0
        tmp = self.root / "tmp"
        for path in list(tmp.iterdir()) if tmp.is_dir() else []:
            if path.suffix == ".lock":
                if not path.with_suffix("").exists() and not is_locked(path):
                    path.unlink(missing_ok=True)
                continue
            lock = path.with_suffix(".lock")
            if path.suffix == ".old" or (lock.exists() and not is_locked(lock)):
                freed += sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
                shutil.rmtree(path, ignore_errors=True)
                lock.unlink(missing_ok=True)
        return freed

    def _directories(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for kind in sorted(self.root.iterdir()):
            if kind.is_dir() and kind.name not in ("tmp", "locks"):
                yield from sorted(p for p in kind.iterdir() if p.is_dir())


def _read(directory: Path) -> Artifact | None:
    try:
        document = json.loads((directory / META).read_text())
        if document["format"] != FORMAT:
            return None
        return Artifact(
            directory=directory,
            kind=document["kind"],
            key=document["key"],
            label=document["label"],
            key_parts=document["key_parts"],
            result=document["result"],
            files=tuple(StoredFile(**f) for f in document["files"]),
            seconds=float(document["seconds"]),
            work=document["work"],
            created=document["created"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key_of(parts: Mapping[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
