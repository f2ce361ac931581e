"""One holder at a time; one that waits says so, and death releases."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cook.graph.locks import file_lock, is_locked, machine_lock, timing_lock_path

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def held_elsewhere(path: Path) -> subprocess.Popen[bytes]:
    """The process that holds the lock."""
    path.touch()
    argv = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert is_locked(path)
    return holder


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    with file_lock(path):
        assert is_locked(path)
    assert not is_locked(path)


def test_one_that_waits_says_so_and_gets_it_when_the_holder_dies(tmp_path: Path) -> None:
    holder = held_elsewhere(path := tmp_path / "lock")
    called = threading.Event()

    def waiting() -> None:
        called.set()
        holder.kill()

    with file_lock(path, waiting):
        assert called.is_set()
        holder.communicate()
        assert is_locked(path)


def test_nothing_is_said_of_a_lock_that_is_held_for_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with ExitStack() as held:
        held.enter_context(file_lock(path))
        threading.Timer(0.05, held.close).start()
        with file_lock(path, lambda: pytest.fail("says that it waits")):
            assert is_locked(path)


def test_what_a_dead_process_left_is_no_lock(tmp_path: Path) -> None:
    holder = held_elsewhere(path := tmp_path / "a.lock")
    holder.kill()
    holder.communicate()
    assert path.exists()
    assert not is_locked(path)
    with file_lock(path, lambda: pytest.fail("waits for a dead process")):
        assert is_locked(path)
    assert not path.exists()


def test_shared_locks_exclude_exclusive_ones_only(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, shared=True):
        with file_lock(path, lambda: pytest.fail("waits"), shared=True):
            assert is_locked(path)
        assert is_locked(path)
    assert not is_locked(path)


def test_who_waits_to_be_alone_goes_before_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is never idle would else never time anything."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    order: list[str] = []
    waits = threading.Event()

    def alone() -> None:
        with machine_lock(alone=True, waiting=waits.set):
            order.append("alone")
            time.sleep(0.3)
            order.append("alone no more")

    def late() -> None:
        with machine_lock(alone=False):
            order.append("late")

    threads = [threading.Thread(target=alone), threading.Thread(target=late)]
    with machine_lock(alone=False):
        threads[0].start()
        assert waits.wait(10)
        threads[1].start()
        time.sleep(0.5)
        assert order == [], "the one waits for us, the other for it"
    for thread in threads:
        thread.join()
    assert order == ["alone", "alone no more", "late"]
    assert not is_locked(timing_lock_path())
