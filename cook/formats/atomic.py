"""Files that are whole or absent: a temporary name beside the target, fsync, rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes ``path``'s place when the block ends well, and is gone otherwise."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp gives 0600; what we publish is as readable as any file the user makes.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _umask() -> int:
    # Reading the mask by setting it would race with other threads.
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text()
        return next(int(line[6:], 8) for line in status.splitlines() if line.startswith("Umask:"))
    return 0o022
