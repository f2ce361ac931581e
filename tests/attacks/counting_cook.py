"""``cook``, once it may begin, with a line for every artifact that it stores.

``counting_cook.py FOLDER ARGUMENTS...``: it says in the pipe ``FOLDER/ready`` that it is there,
waits while whoever started it holds the lock of ``FOLDER/go``, and writes to ``FOLDER/stored``.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cook.cli.main import main
from cook.graph.store import Artifact, Entry, Store

FOLDER = Path(sys.argv[1])
_commit_all = Store.commit_all


def _counted(store: Store, made: Sequence[tuple[Path, Entry]]) -> tuple[Artifact, ...]:
    done = _commit_all(store, made)
    with (FOLDER / "stored").open("a") as file:  # one write, whole in a file opened to append
        file.write("".join(f"{os.getpid()} {a.kind} {a.key}\n" for a in done))
    return done


if __name__ == "__main__":
    Store.commit_all = _counted  # type: ignore[assignment,method-assign]
    with (FOLDER / "ready").open("wb", buffering=0) as pipe:
        pipe.write(b".")
    with (FOLDER / "go").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
    sys.exit(main(sys.argv[2:]))
