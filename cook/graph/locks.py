"""Locks between cooks: one artifact made by one process, nothing during a timing on a machine.

A lock is a file that a living process has locked. Its last holder removes it, so that none is left
when no cook runs; what a killed process leaves is no lock any more, and :func:`sweep` removes it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path


@contextmanager
def file_lock(
    path: Path, waiting: Callable[[], None] | None = None, *, shared: bool = False
) -> Iterator[None]:
    """Hold a lock on ``path`` (created if absent); the kernel frees it at death.

    Exclusive, or ``shared`` with others who share it. ``waiting`` is called once where another
    still holds it after a moment: a step beside this one may be passing :func:`machine_lock`.
    """
    descriptor = _take(path, shared=shared)
    while descriptor is None:
        # A poll, not a blocking call: a signal handler must be able to stop us.
        time.sleep(0.1)
        descriptor = _take(path, shared=shared)
        if descriptor is None and waiting:
            waiting()
            waiting = None
    try:
        yield
    finally:
        _release(path, descriptor)


@contextmanager
def file_lock_if_free(path: Path) -> Iterator[bool]:
    """:func:`file_lock`, but without waiting: whether it is held is what the block is given."""
    descriptor = _take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(path, descriptor)


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


@contextmanager
def machine_lock(*, alone: bool, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """A place on this machine, among all cooks of this user, whatever their COOK_HOME.

    Next to others, or ``alone``. One that waits to be alone goes before those that come later, so
    that a machine that is always busy lets it in, too. ``waiting`` is called once where there is
    none yet.
    """
    once = cache(waiting) if waiting else None
    path = timing_lock_path()
    with ExitStack() as place:
        with file_lock(path.with_suffix(".gate"), once):
            place.enter_context(file_lock(path, once, shared=not alone))
        yield


def timing_lock_path() -> Path:
    """Held by a step that is alone on this machine, shared by those that run side by side."""
    return Path(tempfile.gettempdir()) / f"cook-timing-{os.getuid()}.lock"


def _take(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock; None where another holds it."""
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _release(path: Path, descriptor: int) -> None:
    """Free the lock; its last holder removes the file first, while no other can hold it."""
    try:
        # Of a shared lock this makes an exclusive one, or none where others share it: so it goes.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            path.unlink()
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the file is the one at ``path``: its last holder may have removed it meanwhile, and
    another may have made a new one."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False
