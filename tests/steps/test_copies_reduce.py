"""A reduced draft is made once, of the file that it is a part of, and kept like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook import files
from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.reduction import Reduction
from cook.graph.step import source
from cook.paths import demo_dir
from cook.steps.copies import ReduceStep
from cook.steps.work import MODEL_FILE
from tests.workbench import run

DRAFT = demo_dir() / "draft-f16.gguf"


def test_it_tells_how_it_was_made(tmp_path: Path) -> None:
    step = ReduceStep("draft experts=1", source([DRAFT]), Reduction(1, (0,)))
    outcomes = run(tmp_path, step)
    made, result = outcomes.artifact(step).file(MODEL_FILE), outcomes.result(step)
    told = " ".join(result.command)
    flags = "--override-kv bailingmoe2.expert_used_count=int:1 --prune-layers 0"
    assert told.startswith(f"llama-quantize {flags} {DRAFT} ")
    assert told.endswith(" COPY 1")
    file = read_gguf(made)
    assert result.types == {t.name: t.type_name for t in file.tensors}
    assert result.tensor_bytes == file.tensor_bytes
    assert run(tmp_path, step).ran == [], "it is stored"


def test_what_it_asks_for_is_there_or_told(tmp_path: Path) -> None:
    step = ReduceStep("draft experts=9", source([DRAFT]), Reduction(9))
    failure = run(tmp_path, step).failures[step.key]
    assert isinstance(failure.error, InputError)
    assert "uses 2 experts" in failure.error.message
    assert not list((tmp_path / "store").rglob(MODEL_FILE))


@pytest.mark.parametrize("shared", [True, False])
def test_a_plan_counts_the_disk_of_copies_alone(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cook.steps.copies.shares_blocks", lambda _: shared)
    whole = ReduceStep("draft experts=1", source([DRAFT]), Reduction(1), 7)
    assert whole.disk_bytes() == 7, "the user's file may lie on another disk"
    part = ReduceStep("draft experts=1", whole, Reduction(None, (0,)), 5)
    assert part.disk_bytes() == (0 if shared else 5)
    assert part.predicted_bytes() == 5


def test_whether_blocks_are_shared_is_tried(tmp_path: Path) -> None:
    assert files.shares_blocks(tmp_path) in (True, False)
    assert not list(tmp_path.iterdir())
    assert files.shares_blocks(tmp_path / "later" / "on") == files.shares_blocks(tmp_path)
    assert not files.shares_blocks(Path("/proc"))
