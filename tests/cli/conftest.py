"""Real invocations of ``cook`` in an empty home, and snapshots of what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "COOK_UPDATE_SNAPSHOTS"


@dataclass(frozen=True)
class Invocation:
    """One finished ``cook``: its arguments, exit status and both streams."""

    arguments: tuple[str, ...]
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Runner:
    """Runs ``python -m cook`` in ``directory``, away from the user's home and configuration."""

    directory: Path
    environment: Mapping[str, str]

    def __call__(self, *arguments: str, code: str | None = None) -> Invocation:
        """``code`` runs in place of the module, with the arguments in ``sys.argv``."""
        start = ["-m", "cook"] if code is None else ["-c", code]
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Invocation(arguments, done.returncode, done.stdout, done.stderr)


@pytest.fixture
def cook(tmp_path: Path) -> Runner:
    keep = ("PATH", "LANG", "LC_ALL", "TMPDIR", "COVERAGE_PROCESS_START")
    environment = {k: os.environ[k] for k in keep if k in os.environ}
    home = tmp_path / "home"
    home.mkdir()
    environment |= {
        "HOME": str(home),
        "COOK_HOME": str(tmp_path / "cook-home"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
        "PYTHONPATH": str(ROOT),
    }
    return Runner(tmp_path, environment)


def normalised(text: str, replacements: Sequence[tuple[str, str]]) -> str:
    """``text`` without what differs between machines and runs: paths, times, process ids."""
    for old, new in replacements:
        text = text.replace(old, new)
    text = re.sub(r"bug-\d{8}T\d{6}Z-\d+", "bug-<time>", text)
    return re.sub(r"\b\d+\.\d+ s\b", "<seconds> s", text)


@pytest.fixture
def check_snapshot(tmp_path: Path) -> Callable[[Invocation, str], None]:
    """Compare an invocation with ``snapshots/<name>.txt``; COOK_UPDATE_SNAPSHOTS=1 writes it."""

    def check(done: Invocation, name: str) -> None:
        replacements = [(str(tmp_path), "<tmp>"), (str(ROOT), "<root>")]
        text = (
            f"$ cook {' '.join(done.arguments)}\n[exit {done.status}]\n"
            f"--- stdout\n{done.stdout}--- stderr\n{done.stderr}"
        )
        text = normalised(text, replacements)
        file = SNAPSHOTS / f"{name}.txt"
        if os.environ.get(UPDATE) == "1":
            file.write_text(text)
        assert file.is_file(), f"no snapshot {file.name}: run with {UPDATE}=1 and look at it"
        assert text == file.read_text(), f"if this is meant, run with {UPDATE}=1"

    return check
