"""Locks between cooks: one artifact made by one process, one timing at a time on a machine.

A lock is a file that a living process has locked. It is removed by whoever holds it, so that none
is left when nobody works; what a killed process leaves is no lock any more, and :func:`sweep`
removes it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def file_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (created if absent); the kernel frees it at death.

    ``waiting`` is called once if another process holds it.
    """
    descriptor = _take(path)
    if descriptor is None and waiting:
        waiting()
    while descriptor is None:
        # A poll, not a blocking call: a signal handler must be able to stop us.
        time.sleep(0.1)
        descriptor = _take(path)
    try:
        yield
    finally:
        _let_go(path, descriptor)


@contextmanager
def file_lock_if_free(path: Path) -> Iterator[bool]:
    """:func:`file_lock`, but without waiting: whether it is held is what the block is given."""
    descriptor = _take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _let_go(path, descriptor)


def is_locked(path: Path) -> bool:
    """Whether some living process holds the lock on ``path``."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(folder: Path) -> None:
    """Remove the files of locks in ``folder`` that no living process holds."""
    for path in folder.glob("*.lock"):
        with file_lock_if_free(path):
            pass


def timing_lock_path() -> Path:
    """One lock for all cooks of this user on this machine, whatever their COOK_HOME."""
    return Path(tempfile.gettempdir()) / f"cook-timing-{os.getuid()}.lock"


def _take(path: Path) -> int | None:
    """A descriptor that holds the lock; None where another holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # Between the two calls its last holder may have removed the file: that is no lock then.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return descriptor
        os.close(descriptor)


def _let_go(path: Path, descriptor: int) -> None:
    """Remove the file while it is still held, then free it."""
    path.unlink(missing_ok=True)
    os.close(descriptor)
