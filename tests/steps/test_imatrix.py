"""An imatrix that misses experts is extended, told or refused, as the recipe says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import ImatrixResult, TextJob
from cook.errors import StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.quant_types import Flavour
from cook.graph.step import Source, Workbench
from cook.paths import demo_dir
from cook.steps.imatrix import ImatrixStep, Otherwise
from tests.workbench import workbench

DRAFT = demo_dir() / "draft-f16.gguf"
ENOUGH = 8
"""Chunks after which every expert was seen."""


def imatrix(
    _engine: object, job: TextJob, output: Path, _: Supervisor, *, process_output: bool
) -> ImatrixResult:
    """Half of each tensor's experts are seen before ``ENOUGH`` chunks."""
    assert job.chunks is not None
    entries = {}
    for tensor in read_gguf(job.model).tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
            seen = np.full(experts, 9, np.float32)
            if job.chunks < ENOUGH:
                seen[: experts // 2] = 0
            sums = np.ones((experts, tensor.shape[0]), np.float32) * (seen[:, None] > 0)
            entries[tensor.name] = ImatrixEntry(sums, seen)
    write_gguf(Imatrix(entries, ("c.txt",), job.chunks, job.context, "gguf"), output)
    return ImatrixResult(job.chunks, 9.0, 0.1, 1.0, 1, ("llama-imatrix",))


def step(otherwise: Otherwise, minimum: float = 1.0) -> ImatrixStep:
    engine: Any = SimpleNamespace(name="e", flavour=Flavour.LLAMA_CPP)
    model, corpus = Source(DRAFT, "sha256:aa", 1), Source(Path("/c.txt"), "sha256:bb", 1)
    return ImatrixStep(engine, model, corpus, 512, 2, False, minimum, otherwise)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(tool_runs, "imatrix", imatrix)
    return workbench(tmp_path)


def test_it_is_extended_until_every_expert_was_seen(bench: Workbench) -> None:
    found = step("extend").run(bench)
    assert found.chunks == ENOUGH
    assert found.experts_covered == found.experts_total > 0
    assert [w.rpartition("; ")[2] for w in found.warnings] == [
        "extended to 4 chunks",
        "extended to 8 chunks",
    ]


def test_it_is_told(bench: Workbench) -> None:
    found = step("warn").run(bench)
    assert found.chunks == 2
    assert found.expert_coverage is not None
    assert found.expert_coverage < 1
    (told,) = found.warnings
    assert f"{found.experts_covered} of {found.experts_total} experts have data" in told


def test_it_is_refused(bench: Workbench) -> None:
    with pytest.raises(StepError, match="experts have data"):
        step("fail").run(bench)


def test_what_was_asked_for_is_enough(bench: Workbench) -> None:
    assert step("fail", minimum=0.0).run(bench).warnings == ()
