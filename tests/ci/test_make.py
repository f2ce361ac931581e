"""``make test`` runs all parts of the tests and fails where one did."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("without_engine", "with_engine", "alone"),
    [(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 1)],
)
def test_all_parts_run(without_engine: int, with_engine: int, alone: int, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho ran >> {tmp_path}/ran\ncase "$*" in\n'
        f"*'not engine'*) exit {without_engine};;\n*'not alone'*) exit {with_engine};;\n"
        f"*alone*) exit {alone};;\nesac\n"
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", str(ROOT), "--old-file=setup", "test", f"BIN={tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == any((without_engine, with_engine, alone)), done.stderr
    assert (tmp_path / "ran").read_text() == "ran\n" * 3


def test_nothing_runs_after_an_interrupt(tmp_path: Path) -> None:
    """Ctrl-C reaches make as it reaches pytest, which then ends with 2."""
    ran = tmp_path / "ran"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho ran >> {ran}\ntrap 'exit 2' INT\nsleep 20 & wait\n")
    python.chmod(0o755)
    with subprocess.Popen(
        ["make", "-C", str(ROOT), "--old-file=setup", "test", f"BIN={tmp_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as make:
        until = time.monotonic() + 30
        while not ran.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(make.pid, signal.SIGINT)
        assert make.wait(30) != 0
    assert ran.read_text() == "ran\n"
