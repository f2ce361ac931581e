"""Locks between cooks: one artifact made by one process, nothing beside a timing on a machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def file_lock(
    path: Path, waiting: Callable[[], None] | None = None, *, shared: bool = False
) -> Iterator[None]:
    """Hold a lock on ``path`` (created if absent); the kernel frees it at death.

    Exclusive, or ``shared`` with others who share it. ``waiting`` is called once if another
    process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            if waiting:
                waiting()
            # A poll, not a blocking call: a signal handler must be able to stop us.
            while True:
                try:
                    fcntl.flock(descriptor, how)
                    break
                except BlockingIOError:
                    time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


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


@contextmanager
def machine_lock(*, alone: bool, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """A place on this machine, among all cooks of this user, whatever their COOK_HOME.

    Beside others, or ``alone``. Who waits to be alone goes before those that come later, so that a
    machine that is always busy lets it in, too. ``waiting`` is called once where there is none yet.
    """
    told = False

    def tell() -> None:
        nonlocal told
        if waiting and not told:
            waiting()
        told = True

    path = timing_lock_path()
    with ExitStack() as place:
        with file_lock(path.with_suffix(".gate"), tell):
            place.enter_context(file_lock(path, tell, shared=not alone))
        yield


def timing_lock_path() -> Path:
    """Held by who is alone on this machine, shared by those beside each other."""
    return Path(tempfile.gettempdir()) / f"cook-timing-{os.getuid()}.lock"
