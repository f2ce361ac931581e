"""Whole builds and predictions whose steps are made up: :mod:`tests.job.fabricated`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.job.prepare import Prepared
from cook.job.run import Built, build
from cook.output import Mode, Output
from cook.recipe.load import parse_recipe
from tests.job.fabricated import Fabrication, FakeEngine, World, prompt_set, write_trace
from tests.job.laid_out import SIZES, layout

Building = Callable[..., Built]
"""What the fixture ``built`` is."""


def built(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: World | None = None,
    *,
    score: dict[str, Any] | None = None,
    pick: dict[str, Any] | None = None,
    sizes: dict[str, int] | None = None,
    engines: tuple[str, ...] = ("bundled",),
    again: str | None = None,
) -> Built:
    """What a build of ready drafts comes to in ``world``; ``score`` and ``pick`` of its recipe.

    ``again``: a candidate that runs live whatever the prediction says.
    """
    monkeypatch.setenv("COOK_HOME", str(folder))
    document = {
        "version": 1,
        "name": "made-up",
        "drafts": [{"name": name, "source": f"/models/{name}.gguf"} for name in sizes or SIZES],
        "score": {
            "target": {"source": "/models/target.gguf"},
            "context": 2048,
            "max_tokens": 24,
            "draft": {"n_max": [2, 4, 8]},
            **(score or {}),
        },
        "pick": pick or {},
    }
    loaded = parse_recipe(json.dumps(document), folder / "made-up.yaml")
    layouts = tuple(
        layout(
            loaded.recipe.score,
            sizes,
            FakeEngine(name),
            f"@{name}" if len(engines) > 1 else "",
        )
        for name in engines
    )
    fabrication = Fabrication(folder, world)
    monkeypatch.setattr("cook.job.run.Executor", lambda *_, **__: fabrication)
    return build(Prepared(loaded, False, layouts, ()), Output(Mode.QUIET), again=again)


def predicted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, world: World | None = None
) -> int:
    """``cook predict TRACE small.gguf large.gguf ARGUMENTS`` in ``folder``, in ``world``."""
    from cook.cli.main import main
    from tests.engines.tiny_model import write_tiny_model

    fabrication = Fabrication(folder / "home", world)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("cook.engines.discover.discover", lambda _: FakeEngine())
    monkeypatch.setattr("cook.engines.worker.compile.locate", lambda engine: engine)
    monkeypatch.setattr("cook.engines.worker.compile.build_worker", lambda _: None)
    for what in ("require_draft", "require_target"):
        monkeypatch.setattr(f"cook.trace.compatible.{what}", lambda *_: None)
    monkeypatch.setattr("cook.job.predict.Executor", lambda *_, **__: fabrication)
    if not Path("some.trace").exists():
        write_trace(Path("some.trace"), prompt_set(), fabrication.world)
    for seed, name in enumerate(("small.gguf", "large.gguf", "target.gguf")):
        if not Path(name).exists():
            write_tiny_model(Path(name), seed=seed)
    return main(["predict", "some.trace", "small.gguf", "large.gguf", *arguments])
