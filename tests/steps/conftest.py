"""Where tests of steps run them: a bench without a build, or a store of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cook.graph.execute import Executor
from cook.graph.step import Workbench
from tests import workbench


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return workbench.workbench(tmp_path)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with workbench.executor(tmp_path, threads=1) as running:
        yield running
