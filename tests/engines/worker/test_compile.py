"""Compiling the worker: what is left when cook is killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")

CODE = """\
import sys
from pathlib import Path
from cook.engines.base import Flavour
from cook.engines.worker.compile import EngineFiles, build_worker
include = Path(sys.argv[1])
build_worker(EngineFiles(Flavour.LLAMA_CPP, "kills", (include,), (include,)))
"""


CHAIN = ["cc1", "gcc", "slow-cc"]


def at_work(source: Path) -> dict[int, str]:
    """The wrapper, gcc and cc1: every living process that names ``source`` or the wrapper."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z" and (str(source).encode() in line or b"slow-cc" in line):
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


@pytest.fixture
def never_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A compiler that really compiles, without an end: gcc, whose cc1 reads a pipe. Nothing of it
    is left running when a test fails."""
    source, wrapper = tmp_path / "never-ending.c", tmp_path / "slow-cc"
    os.mkfifo(source)
    wrapper.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) exec gcc --version;; esac\n'
        f"gcc -c {source} -o {tmp_path}/never.o\n"
        "echo went on after its compiler\n"
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    yield source
    for pid in at_work(source):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_compiler_outlives_cook(
    never_ending: Path, tmp_path: Path, number: signal.Signals
) -> None:
    cook = subprocess.Popen(
        [sys.executable, "-c", CODE, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        commands: list[str] = []
        # What is about to become gcc has the wrapper's name for a moment.
        while commands != CHAIN and cook.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            commands = sorted(at_work(never_ending).values())
        assert commands == CHAIN
    finally:
        cook.send_signal(number)
        cook.wait(30)
    deadline = time.monotonic() + 20
    while at_work(never_ending) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert at_work(never_ending) == {}
