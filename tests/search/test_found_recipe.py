"""The recipe that a search writes: the given one, and the mix as a quant of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.errors import InternalError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import LLAMA_CPP
from cook.graph.step import source
from cook.job.locate import ModelFile
from cook.paths import demo_dir
from cook.recipe.load import load_recipe, parse_recipe
from cook.recipe.rules import ModelTensors
from cook.search.found_recipe import base_type, rules, with_quant
from cook.search.space import LADDERS, Space

DRAFT = demo_dir() / "draft-f16.gguf"
FILE = read_gguf(DRAFT)
SPACE = Space.of(FILE, LLAMA_CPP, LADDERS[LLAMA_CPP], imatrix=True)


def mix() -> dict[str, str]:
    found = SPACE.largest
    spans = {span.name: span for span in SPACE.spans()}
    found = SPACE.changed(found, spans["routed_experts"], "iq2_xxs")
    found = SPACE.changed(found, SPACE.split(spans["attention"])[0], "iq4_xs")
    return SPACE.tensor_types(found)


def test_whole_groups_are_named_and_others_by_tensor() -> None:
    found = dict(rules(mix(), SPACE))
    assert found["routed_experts"] == "iq2_xxs"
    assert found["output"] == "q8_0"
    assert "attention" not in found
    assert sum("attn_" in selector for selector in found) == 2


def test_the_written_recipe_is_the_given_one_with_the_mix(
    standin_engine: Any, tmp_path: Path
) -> None:
    loaded = load_recipe("demo")
    engine = standin_engine(LLAMA_CPP)
    model = ModelFile(source([DRAFT]), FILE)
    path = tmp_path / "found.yaml"
    text = with_quant(loaded, "SEARCHED", mix(), SPACE, model, engine, path)
    again = parse_recipe(text, path)
    assert [q.name for q in again.quants] == [*(q.name for q in loaded.quants), "SEARCHED"]
    assert again.quants[:-1] == loaded.quants
    assert again.recipe.score == loaded.recipe.score
    tensors = ModelTensors(FILE.tensors, FILE.architecture)
    resolved = tensors.resolve(again.quants[-1], LLAMA_CPP)
    assert {n: resolved.types[n] for n in mix()} == mix()
    assert not resolved.problems


def test_the_base_type_is_that_of_most_weights(standin_engine: Any) -> None:
    engine = standin_engine(LLAMA_CPP)
    assert base_type(mix(), SPACE, engine) == "Q8_0"
    assert base_type(dict.fromkeys(mix(), "q4_K"), SPACE, engine) == "Q4_K"


def test_a_recipe_that_is_not_the_mix_is_refused(standin_engine: Any, tmp_path: Path) -> None:
    wrong = {**mix(), "output_norm.weight": "q8_0"}
    model = ModelFile(source([DRAFT]), FILE)
    engine = standin_engine(LLAMA_CPP)
    with pytest.raises(InternalError, match="another type for output_norm"):
        with_quant(load_recipe("demo"), "X", wrong, SPACE, model, engine, tmp_path / "x.yaml")
