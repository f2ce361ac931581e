"""A target with another head is the target byte for byte, but for the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.formats.gguf import read_gguf
from cook.formats.heads import SPLICED, head_of
from cook.graph.step import source
from cook.steps import copies
from cook.steps.copies import SpliceHeadStep
from cook.steps.work import head_bytes, model_paths
from tests.engines.tiny_heads import write_tiny_heads
from tests.workbench import run


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
    added = {SPLICED: head.key}
    same = {k: v for k, v in file.metadata.items() if k != "cook.padding"}
    assert same == {**old.metadata, **added}
    assert head_bytes(step) == head_bytes(head)
    for shared, room in ((True, 100), (False, target.size_bytes)):
        monkeypatch.setattr(copies, "shares_blocks", lambda _, shared=shared: shared)
        assert step.disk_bytes() == room
