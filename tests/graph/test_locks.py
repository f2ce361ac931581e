"""One holder at a time; who waits is told, and death lets go."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from cook.graph.locks import file_lock, is_locked

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    with file_lock(path):
        assert is_locked(path)
    assert not is_locked(path)


def test_who_waits_is_told_and_gets_it_when_the_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert is_locked(path)
    told = threading.Event()

    def waiting() -> None:
        told.set()
        holder.kill()

    with file_lock(path, waiting):
        assert told.is_set()
        holder.communicate()
        assert is_locked(path)
