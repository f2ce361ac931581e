"""A reduced draft is made once, of the file that it is a part of, and kept like any other; a target
with another head is the target byte for byte, but for the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook import files
from cook.errors import InputError
from cook.formats.gguf import read_gguf
from cook.formats.heads import SPLICED, head_of
from cook.formats.reduction import Reduction
from cook.graph.step import source
from cook.paths import demo_dir
from cook.steps import copies
from cook.steps.copies import ReduceStep, SpliceHeadStep
from cook.steps.work import MODEL_FILE, head_bytes, model_paths
from tests.engines.tiny_heads import write_tiny_heads
from tests.workbench import run

DRAFT = demo_dir() / "draft-f16.gguf"


def test_it_says_how_it_was_made(tmp_path: Path) -> None:
    step = ReduceStep("draft experts=1", source([DRAFT]), Reduction(1, (0,)))
    outcomes = run(tmp_path, step)
    made, result = outcomes.artifact(step).file(MODEL_FILE), outcomes.result(step)
    command = " ".join(result.command)
    flags = "--override-kv bailingmoe2.expert_used_count=int:1 --prune-layers 0"
    assert command.startswith(f"llama-quantize {flags} {DRAFT} ")
    assert command.endswith(" COPY 1")
    file = read_gguf(made)
    assert result.types == {t.name: t.type_name for t in file.tensors}
    assert result.tensor_bytes == file.tensor_bytes
    assert run(tmp_path, step).ran == [], "it is stored"


def test_more_experts_than_there_are_is_an_error(tmp_path: Path) -> None:
    step = ReduceStep("draft experts=9", source([DRAFT]), Reduction(9))
    failure = run(tmp_path, step).failures[step.key]
    assert isinstance(failure.error, InputError)
    assert "uses 2 experts" in failure.error.message
    assert not list((tmp_path / "store").rglob(MODEL_FILE))


@pytest.mark.parametrize("shared", [True, False])
def test_a_plan_counts_the_disk_of_copies(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "shares_blocks", lambda _: shared)
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


def test_only_the_head_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_heads(tmp_path)
    target, head = (source([tmp_path / name]) for name in ("whole.gguf", "head-q8_0.gguf"))
    step = SpliceHeadStep("q8", target, head, 100)
    outcomes = run(tmp_path / "home", step)
    file = read_gguf(model_paths(outcomes.artifact(step))[0])
    old, new = read_gguf(target.path), read_gguf(head.path)
    assert [t.name for t in file.tensors] == [t.name for t in old.tensors]
    for tensor in file.tensors:
        origin = new if tensor.name.startswith("blk.2.") else old
        assert tensor.type_name == origin.tensor(tensor.name).type_name
        assert file.read_tensor_bytes(tensor.name) == origin.read_tensor_bytes(tensor.name)
    assert file.tensor("blk.2.attn_q.weight").type_name == "q8_0"
    assert file.tensor("output.weight").type_name == "f16"
    assert head_of(file) == head_of(old)
    same = {k: v for k, v in file.metadata.items() if k != "cook.padding"}
    assert same == {**old.metadata, SPLICED: head.key}
    assert head_bytes(step) == head_bytes(head)
    for shared, room in ((True, 100), (False, target.size_bytes)):
        monkeypatch.setattr(copies, "shares_blocks", lambda _, shared=shared: shared)
        assert step.disk_bytes() == room
