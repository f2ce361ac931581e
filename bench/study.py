"""A study: something measured in one run, its lines, and whether its bound holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cook.engines.base import Engine
from cook.engines.discover import discover
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Mode, Output
from cook.provenance import machine


@dataclass(frozen=True)
class Study:
    """``lines`` are printed as they are; ``within`` says whether the bound holds."""

    lines: tuple[str, ...]
    within: bool


def engine_names() -> tuple[str, ...]:
    """The bundled one, and ik where ``COOK_ENGINE_IK`` names a build."""
    return ("bundled", "ik") if os.environ.get("COOK_ENGINE_IK") else ("bundled",)


def engines() -> list[Engine]:
    """Those of :func:`engine_names`."""
    return [discover(name) for name in engine_names()]


@contextmanager
def empty_executor() -> Iterator[Executor]:
    """An executor of one thread over an empty store that is gone afterwards."""
    with TemporaryDirectory(prefix="cook-bench-") as directory:
        home = Path(directory)
        store, output = Store(home / "store"), Output(Mode.QUIET)
        with Executor(store, output, logs=home / "logs", threads=1) as executor:
            yield executor


Turns = tuple[float, float, float, float]
"""Of medians the ratio, of a round the least and the largest, and seconds of the other."""


def in_turns(usual: Callable[[], object], other: Callable[[], object], rounds: int) -> Turns:
    """What ``other`` takes beside ``usual``; a first round warms up."""
    spent: list[list[float]] = []
    for number in range(rounds + 1):
        pair = [0.0, 0.0]
        for place in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            (usual, other)[place]()
            pair[place] = time.perf_counter() - started
        spent.append(pair)
    ratios = [more / less for less, more in spent[1:]]
    usual_s, other_s = (median(column) for column in zip(*spent[1:], strict=True))
    return other_s / usual_s, min(ratios), max(ratios), other_s


BUSY_S = 2.0
_SPIN = f"""
import os, time
started_by = os.getppid()
while os.getppid() == started_by:  # not beyond a run that was killed
    end = time.monotonic() + {BUSY_S}
    while time.monotonic() < end: pass
    time.sleep({BUSY_S})
"""


@contextmanager
def neighbour(noisy: bool) -> Iterator[None]:
    """Where ``noisy``, a process that holds one core half of the time."""
    if not noisy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _SPIN]) as running:
        try:
            yield
        finally:
            running.kill()


def append_result(file: Path, result: Mapping[str, Any]) -> None:
    """One JSON line, with the commit, the machine and the time of day."""
    words = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    made = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    here = {"commit": commit or None, "machine": machine().processor, "made": made}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**result, **here}) + "\n")
