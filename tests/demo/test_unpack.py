"""The demo's target unpacked: the weights of the q8_0 file, made once, found by every reader."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from cook.build.locate import locate
from cook.demo.unpack import SHIPPED, UNPACKED, unpack, unpacked
from cook.formats.gguf import read_gguf
from cook.paths import demo_dir

SOURCE = demo_dir() / SHIPPED


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_every_weight_is_the_shipped_one() -> None:
    ours = {t.name: t for t in GGUFReader(unpacked()).tensors}
    for shipped in GGUFReader(SOURCE).tensors:
        before = dequantize(shipped.data, shipped.tensor_type)
        found = ours[shipped.name]
        kept = shipped.tensor_type.name == "F32"
        assert found.tensor_type.name == ("F32" if kept else "F16"), shipped.name
        np.testing.assert_array_equal(
            found.data, before if kept else before.astype(np.float16), err_msg=shipped.name
        )


def test_it_is_written_once(home: Path) -> None:
    first = unpacked()
    before = first.stat()
    assert unpacked() == first
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [p.name for p in home.rglob("*.gguf")] == [UNPACKED]


def test_a_recipe_finds_it_even_for_a_plan() -> None:
    found = locate(demo_dir() / UNPACKED, plan_only=True)
    assert found.path == unpacked()
    assert not found.source.provisional
    assert read_gguf(found.path).metadata["general.file_type"] == 1


@pytest.mark.engine
def test_its_bytes_are_those_of_the_engines_own_tool(bundled: Any, tmp_path: Path) -> None:
    by_hand = tmp_path / "by-hand.gguf"
    tool = bundled.tool("quantize")
    command = [str(tool), "--allow-requantize", str(SOURCE), str(by_hand), "F16", "1"]
    subprocess.run(command, check=True, capture_output=True, env=bundled.environment())
    ours = tmp_path / "ours.gguf"
    unpack(read_gguf(SOURCE), ours)
    theirs, mine = read_gguf(by_hand), read_gguf(ours)
    assert {t.name: t.type_name for t in mine.tensors} == {
        t.name: t.type_name for t in theirs.tensors
    }
    for tensor in theirs.tensors:
        name = tensor.name
        assert mine.read_tensor_bytes(name) == theirs.read_tensor_bytes(name), name
