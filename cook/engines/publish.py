"""Files that a tool writes: whole and durable under their name, or absent.

The tool writes under a temporary name beside the target; what has been verified is synced and
renamed. A leftover ``.*.tmp*`` is from a cook that was killed, and may be deleted.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_beside(output: Path) -> Iterator[Path]:
    """A free name beside ``output``, with its suffix; gone afterwards unless published."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.stem}.{uuid.uuid4().hex[:12]}.tmp{output.suffix}")
    try:
        yield partial
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def publish(partial: Path, output: Path) -> None:
    """Make ``partial`` durable as ``output``: the data first, then the name."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(output)
    directory = os.open(output.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
