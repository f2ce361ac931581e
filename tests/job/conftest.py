"""Whole builds whose steps are made up, in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.job.run import Built
from cook.record.record import Record
from tests.job import whole
from tests.job.fabricated import World


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> whole.Building:
    """``built(world, home="", **of_the_recipe)``: :func:`tests.job.whole.built` under
    ``tmp_path``."""

    def build(world: World | None = None, *, home: str = "", **changes: Any) -> Built:
        return whole.built(tmp_path / home, monkeypatch, world, **changes)

    return build


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The build of which nothing was changed."""
    with pytest.MonkeyPatch.context() as patch:
        return whole.built(tmp_path_factory.mktemp("made-up"), patch)


@pytest.fixture(scope="session")
def record(made_up: Built) -> Record:
    """That of :func:`made_up`."""
    return made_up.record
