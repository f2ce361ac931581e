"""Files: what identifies one, what its bytes hash to, and how one is written whole.

A model of 1 TB is hashed once, then remembered. A digest is remembered for the file as it was:
device, inode, size, and the times of its last change of content and of its inode. The last one
cannot be set by any program, so a change in place that restores size and modification time
(``rsync --inplace -t``, a restored backup) shows all the same. What no ``stat`` shows, a disk
that returns other bytes, only hashing again finds: ``--fresh`` and ``cook store verify``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from cook.errors import InputError
from cook.paths import cook_home

BLOCK = 8 << 20
"""Bytes read at once where a file is read whole."""
SHARED_BLOCK = 4096
"""Files that share data share whole blocks of it, so it must lie alike in both."""

SETTLED_S = 3.0
"""A file that changed within so many seconds is not remembered: its next change could carry the
same time. File systems count in steps of up to two seconds (FAT), most in a few milliseconds."""

_WAIT = (
    "wait until it is whole (a download or a copy that still runs?), then run the same command "
    "again"
)

_own: set[str] | None = None
"""Identities whose digests this process noted itself, once it trusts no others; None: it does."""


@dataclass(frozen=True)
class Identity:
    """What distinguishes a file from all others, and from itself at another time; times in ns."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    def __str__(self) -> str:
        parts = (self.device, self.inode, self.size_bytes, self.modified_ns, self.changed_ns)
        return ":".join(map(str, parts))

    def settled(self, now_s: float) -> bool:
        """Whether any change after ``now_s`` (seconds since 1970) must show in the identity."""
        return now_s - self.changed_ns / 1e9 > SETTLED_S


def identity(path: Path) -> Identity:
    """The file as it is now, links followed; InputError where there is none."""
    try:
        now = path.stat()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    return Identity(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@dataclass(frozen=True)
class HashedFile:
    """A file, what it was when it was hashed, and its digest (``sha256:`` and all)."""

    path: Path
    identity: Identity
    digest: str

    def require_unchanged(self) -> None:
        """InputError unless the bytes are still those; a mere touch has them hashed again."""
        if identity(self.path) != self.identity and digest(self.path) != self.digest:
            raise InputError(f"{self.path}: changed since it was hashed", hint=_WAIT)


def file_sha256(path: Path) -> str:
    """SHA-256 of the whole file, hexadecimal, read now."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(path: Path) -> str:
    """``sha256:`` and the hash of ``path``, remembered or read now.

    InputError when the file cannot be read, or changes while it is.
    """
    return hash_file(path).digest


def hash_file(path: Path) -> HashedFile:
    """:func:`digest`, with what it holds for."""
    began = time.time()
    before = identity(path)
    if (known := _recall(before)) is not None:
        return HashedFile(path, before, known)
    try:
        found = f"sha256:{file_sha256(path)}"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if identity(path) != before:
        raise InputError(f"{path}: changed while it was hashed", hint=_WAIT)
    if before.settled(began):
        _note(path, before, found)
    return HashedFile(path, before, found)


def hash_files(paths: Sequence[Path]) -> tuple[HashedFile, ...]:
    """:func:`hash_file` of each, side by side: a processor hashes slower than a disk reads."""
    if len(paths) < 2:
        return tuple(hash_file(path) for path in paths)
    from joblib import Parallel, delayed

    cores = len(os.sched_getaffinity(0))
    return tuple(Parallel(min(cores, len(paths)), prefer="threads")(map(delayed(hash_file), paths)))


def remembered_digest(path: Path) -> str | None:
    """The digest noted for ``path`` as it is now, if there is one to be believed."""
    return _recall(identity(path))


def remember(path: Path, digest: str) -> None:
    """Note the digest (``sha256:`` and all) of a file that only cook writes, as just written.

    It need not have settled: its writer is gone.
    """
    _note(path, identity(path), digest)


def distrust_older_digests() -> None:
    """From now on this process believes only digests that it notes itself.

    Nothing of that hangs on a clock, which may have been set back since a digest was noted.
    """
    global _own
    _own = set()


@dataclass(frozen=True)
class WrongMemory:
    """A file whose bytes are not those that were remembered, though nothing else shows it."""

    path: Path
    remembered: str
    found: str


def verify_memory(besides: Path | None = None) -> Iterator[WrongMemory]:
    """Hash every remembered file again, except below ``besides``; wrong memories are dropped.

    So are those of files that are gone or have changed since, which are not asked for any more.
    """
    folder = _folder()
    for memo in sorted(folder.iterdir()) if folder.is_dir() else []:
        noted = _read(memo)
        if noted is None or not noted.holds:
            memo.unlink(missing_ok=True)
        elif besides is None or not noted.path.is_relative_to(besides):
            with suppress(OSError):
                found = f"sha256:{file_sha256(noted.path)}"
                if found != noted.digest and noted.holds:
                    memo.unlink(missing_ok=True)
                    yield WrongMemory(noted.path, noted.digest, found)


@dataclass(frozen=True)
class _Noted:
    path: Path
    identity: str
    digest: str

    @property
    def holds(self) -> bool:
        """Whether the file is there, and as it was noted."""
        try:
            return self.identity == str(identity(self.path))
        except InputError:
            return False


def _folder() -> Path:
    return cook_home() / "cache" / "digests"


def _memo(of: Identity) -> Path:
    return _folder() / hashlib.sha256(str(of).encode()).hexdigest()[:32]


def _recall(now: Identity) -> str | None:
    if _own is not None and str(now) not in _own:
        return None
    noted = _read(_memo(now))
    return noted.digest if noted and noted.identity == str(now) else None


def own_bytes(path: Path) -> bytes:
    """A small file that cook itself wrote; OSError where it is no regular file any more.

    Opening a pipe that lies in its place would wait for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def _read(memo: Path) -> _Noted | None:
    try:
        fields = json.loads(own_bytes(memo))
        return _Noted(Path(fields["path"]), str(fields["identity"]), str(fields["digest"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note(path: Path, of: Identity, digest: str) -> None:
    memo = _memo(of)
    fields = {"path": str(path.absolute()), "identity": str(of), "digest": digest}
    with suppress(OSError):  # a home that may not be written only costs hashing again
        memo.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(memo, durable=False) as file:  # lost, it costs hashing again
            file.write(json.dumps(fields).encode())
        if _own is not None:
            _own.add(str(of))


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes ``path``'s place when the block ends well, and is gone otherwise.

    One that is not ``durable`` may be gone, or cut short, after a power cut.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        # mkstemp gives 0600; what we publish is as readable as any file the user makes.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        fsync(path.parent)


@contextmanager
def temporary_beside(output: Path) -> Iterator[Path]:
    """A free name next to ``output``, with its suffix, for a tool to write under.

    Gone afterwards unless published; a leftover ``.*.tmp*`` is from a cook that was killed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.stem}.{uuid.uuid4().hex[:12]}.tmp{output.suffix}")
    try:
        yield partial
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


@dataclass(frozen=True)
class FileRange:
    """``size_bytes`` bytes of a file, from ``offset`` on."""

    path: Path
    offset: int
    size_bytes: int

    def append_to(self, out: BinaryIO) -> None:
        """Copy them to the end of ``out``, in the kernel, where the file system can by sharing
        blocks (of data that lies in them alike); InputError where they cannot be read."""
        out.flush()
        try:
            source = self.path.open("rb", buffering=0)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None
        with source as file:
            at, end = self.offset, self.offset + self.size_bytes
            in_kernel = hasattr(os, "copy_file_range")
            while at < end:
                try:
                    if in_kernel:
                        # Blocks are shared from where one begins.
                        wanted = min(end - at, -at % SHARED_BLOCK or 1 << 30)
                        done = os.copy_file_range(file.fileno(), out.fileno(), wanted, at)
                    else:
                        piece = os.pread(file.fileno(), min(end - at, BLOCK), at)
                        out.write(piece)
                        done = len(piece)
                except OSError as error:
                    if in_kernel and error.errno in _NOT_IN_KERNEL:
                        in_kernel = False
                        continue
                    if error.errno == errno.EIO:
                        raise InputError(
                            f"{self.path}: cannot be read at byte {at}: {error.strerror}"
                        ) from None
                    raise
                if not done:
                    raise InputError(f"{self.path}: ends at byte {at}, expected {end}")
                at += done


@cache
def shares_blocks(directory: Path) -> bool:
    """Whether a copy within ``directory`` costs no room: its file system shares blocks (XFS,
    btrfs, bcachefs). Tried with one block, above a directory that is not there yet."""
    import fcntl

    while not directory.exists():
        directory = directory.parent
    try:
        with (
            tempfile.TemporaryFile(dir=directory) as one,
            tempfile.TemporaryFile(dir=directory) as two,
        ):
            one.write(bytes(SHARED_BLOCK))
            one.flush()
            fcntl.ioctl(two.fileno(), _FICLONE, one.fileno())
    except OSError:
        return False
    return True


_FICLONE = 0x40049409
"""``ioctl_ficlone(2)``."""
_NOT_IN_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
"""What copy_file_range says where these two files, or this kernel, cannot."""


def publish(partial: Path, output: Path) -> None:
    """Make ``partial`` durable as ``output``: the data first, then the name."""
    fsync(partial)
    partial.replace(output)
    fsync(output.parent)


def fsync(path: Path) -> None:
    """Have the data of a file, or the names in a directory, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    # Reading the mask by setting it would race with other threads.
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text()
        return next(int(line[6:], 8) for line in status.splitlines() if line.startswith("Umask:"))
    return 0o022
