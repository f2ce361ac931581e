"""A study: something measured in one run, its lines, and whether its bound holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
def empty_executor(
    threads: int = 1, *, fresh: bool = False, kept: Path | None = None
) -> Iterator[Executor]:
    """An executor over an empty store that is gone afterwards, or over that of the folder ``kept``,
    which stays."""
    folder = nullcontext(kept) if kept else TemporaryDirectory(prefix="cook-bench-")
    with folder as directory:
        home = Path(directory)
        with Executor(
            Store(home / "store"),
            Output(Mode.QUIET),
            logs=home / "logs",
            threads=threads,
            fresh=fresh,
        ) as executor:
            yield executor
