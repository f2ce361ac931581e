"""Where a test runs steps: a workbench of its own, or a whole store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.graph.execute import Executor, Outcomes
from cook.graph.piece import Pieces
from cook.graph.step import Step, Workbench
from cook.graph.store import Store
from cook.output import Mode, Output


def pieces_in(folder: Path) -> Pieces:
    """In a store of its own, under ``folder``; says nothing."""
    return Pieces(Store(folder), Output(Mode.QUIET))


def workbench(folder: Path, threads: int = 1) -> Workbench:
    """For a step whose inputs are files: nothing was made before."""

    def nothing(_: object) -> Any:
        raise AssertionError("nothing was made before")

    return Workbench(
        directory=folder,
        supervisor=Supervisor(folder / "logs"),
        workers=KeptWorkers(folder / "workers"),
        artifact=nothing,
        threads=threads,
        advance=lambda share: None,
        pieces=pieces_in(folder / "store"),
    )


def executor(home: Path, **options: Any) -> Executor:
    """Over a store in ``home``; says nothing."""
    return Executor(Store(home / "store"), Output(Mode.QUIET), logs=home / "logs", **options)


def run(home: Path, *steps: Step[Any], **options: Any) -> Outcomes:
    """What becomes of ``steps`` in a store in ``home``."""
    with executor(home, **options) as running:
        return running.run(steps)
