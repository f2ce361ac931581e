"""Where a test runs steps: a workbench of its own, or a whole store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cook.engines.base import DraftSettings, ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.formats.sampling import Sampling
from cook.graph.execute import Executor, Outcomes
from cook.graph.piece import Pieces
from cook.graph.step import Step, Workbench, source
from cook.graph.store import Store
from cook.output import Mode, Output
from cook.paths import demo_dir
from cook.prompts.prompt_set import Prompt, load_prompts
from cook.steps.live import LiveStep
from cook.steps.trace import TraceStep


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


def live_step(engine: Any, settings: DraftSettings | None = None, **changes: Any) -> LiveStep:
    """The demo's target on four prompts of its own; with ``settings`` also its draft."""
    one = ModelArgs(threads=1)
    bare = LiveStep(
        engine=engine,
        name="no draft",
        target=source([demo_dir() / "target-q8_0.gguf"]),
        target_args=one,
        context=1024,
        draft=source([demo_dir() / "draft-f16.gguf"]) if settings is not None else None,
        draft_args=one,
        settings=settings,
        prompts=load_prompts("demo").prompts[:4],
        max_tokens=24,
        sampling=Sampling(),
        chat=False,
    )
    return replace(bare, **changes)


def trace_step(engine: Any, **changes: Any) -> TraceStep:
    """The demo's target on three short prompts."""
    prompts = tuple(
        Prompt(f"p{i}", "code", f"def area_{i}(width, height):\n    return", "pick")
        for i in range(3)
    )
    target, args = source([demo_dir() / "target-q8_0.gguf"]), ModelArgs(threads=1)
    step = TraceStep(engine, target, args, 512, prompts, 24, Sampling(), chat=False)
    return replace(step, **changes)
