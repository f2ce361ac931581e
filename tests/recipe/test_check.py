"""`cook recipes check` below the command line."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cook.engines.base import Engine
from cook.errors import PrerequisiteError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.load import load_recipe, parse_recipe
from tests.engines.tiny_model import write_tiny_model
from tests.recipe.conftest import HEAD

DATA = Path(__file__).parents[1] / "data"


def test_sizes_on_a_tensor_list() -> None:
    loaded = load_recipe("ling-flash-iq1kt")
    result = check_recipe(loaded, None, DATA / "ling-flash-2.0.tensors.tsv")
    assert result.flavour == IK_LLAMA_CPP
    assert [p.kind for p in result.problems] == ["file"]
    assert {q.name: round((q.size_bytes or 0) / 2**20, 2) for q in result.quants} == {
        "IQ1_KT": 23266.73,
        "IQ1_KT-PUFFED": 24181.83,
        "IQ2_KL": 35498.34,
    }
    assert result.quants[0].tensors_of_type["iq1_kt"] == 93


def test_unknown_where_the_mixture_decides() -> None:
    result = check_recipe(load_recipe("demo"), None, demo_dir() / "draft-f16.gguf")
    assert result.flavour == LLAMA_CPP
    assert result.problems == ()
    first, *_, last = result.quants
    assert first.size_bytes is None
    assert first.tensors_of_type["?"] > 0
    assert "--engine" in (first.size_absent or "")
    assert (last.size_bytes is None, last.size_absent) == (False, None)


@pytest.mark.engine
def test_an_engine_is_asked_for_its_mixture(bundled: Engine, tmp_path: Path) -> None:
    """`cook recipes check --tensors` gave no size for plain Q8_0 and Q4_0, nor a reason. Rows of
    160 are no multiple of 256, so Q4_K_M falls back."""
    model = write_tiny_model(tmp_path / "m.gguf", width=160, hidden=320)
    quants = ", ".join(f"{{name: {t}, type: {t}}}" for t in ("Q8_0", "Q4_0", "Q4_K_M"))
    text = f"version: 1\nname: r\nmodel: {{source: m.gguf}}\nquants: [{quants}]\n"
    result = check_recipe(parse_recipe(text, tmp_path / "r.yaml"), bundled, model)
    for quant in result.quants:
        made = tmp_path / f"{quant.name}.gguf"
        command = [str(bundled.tool("quantize")), str(model), str(made), quant.type, "1"]
        subprocess.run(command, check=True, capture_output=True, env=bundled.environment())
        tensors = read_gguf(made).tensors
        assert quant.size_bytes == sum(t.size_bytes or 0 for t in tensors), quant
        assert quant.tensors_of_type == Counter(t.type_name for t in tensors)


def test_a_ready_imatrix_without_what_a_type_needs(tmp_path: Path) -> None:
    entry = ImatrixEntry(np.ones((1, 256), np.float32), np.ones(1, np.float32))
    write_gguf(Imatrix({"blk.0.attn_q.weight": entry}, (), 1, 512, "gguf"), tmp_path / "i.gguf")
    text = (
        f"{HEAD}imatrix: {{file: i.gguf}}\n"
        "quants: [{name: A, type: Q8_0, rules: [{dense_ffn: iq2_s}, {'.*': q8_0}]}]\n"
    )
    loaded = parse_recipe(text, tmp_path / "r.yaml")
    result = check_recipe(loaded, None, demo_dir() / "draft-f16.gguf")
    (problem,) = [p for p in result.problems if p.severity == "error"]
    assert (problem.line, problem.column) == (5, 41)
    assert "iq2_s needs importance data that is not in the imatrix" in problem.message


@pytest.mark.engine
def test_an_engine_without_the_types_is_a_prerequisite(bundled: Engine) -> None:
    with pytest.raises(PrerequisiteError) as caught:
        check_recipe(load_recipe("ling-flash-iq1kt"), bundled)
    assert "ik_llama.cpp has it" in caught.value.message
    assert caught.value.exit_code == 5
