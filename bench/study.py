"""A study: something measured in one run, its lines, and whether its bound holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cook.engines.base import Engine
from cook.engines.discover import discover
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Mode, Output


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
