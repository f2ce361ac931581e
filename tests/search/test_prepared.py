"""What a command line asks of a search, and the recipe that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.errors import InputError, InternalError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import LLAMA_CPP
from cook.paths import demo_dir
from cook.recipe.load import load_recipe, parse_recipe
from cook.recipe.rules import ModelTensors
from cook.search.evaluate import Budget
from cook.search.prepared import (
    EVALUATIONS,
    base_type,
    budget_of,
    bytes_of,
    rules,
    with_quant,
)
from cook.search.space import LADDERS, Space


def test_sizes_and_budgets_are_read_as_people_write_them() -> None:
    sizes = ("24GiB", "24 GiB", "1.5MiB", "900MB", "900M", "1900000", "2tib")
    assert [bytes_of(text, "--size") for text in sizes] == [
        *(24 << 30, 24 << 30, 3 << 19, 900_000_000, 900_000_000, 1_900_000, 2 << 40)
    ]
    budgets = (None, "200", "40m", "1.5h", "90s")
    assert [budget_of(text) for text in budgets] == [
        *(Budget(EVALUATIONS), Budget(200), Budget(seconds=2400)),
        *(Budget(seconds=5400), Budget(seconds=90)),
    ]


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1 GiB more", "1e9", "24GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf"--size {text}: no size"):
        bytes_of(text, "--size")


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "40 m", "4d", "9" * 400])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf"--budget {text[:40]}: no budget"):
        budget_of(text)


FILE = read_gguf(demo_dir() / "draft-f16.gguf")
SPACE = Space.of(FILE, LLAMA_CPP, LADDERS[LLAMA_CPP], imatrix=True)


@pytest.fixture
def mix() -> dict[str, str]:
    """One whole group and a part of another in other types than the rest."""
    spans = {span.name: span for span in SPACE.spans()}
    found = SPACE.changed(SPACE.largest, spans["routed_experts"], "iq2_xxs")
    found = SPACE.changed(found, SPACE.split(spans["attention"])[0], "iq4_xs")
    return SPACE.tensor_types(found)


@pytest.fixture
def engine(standin_engine: Any) -> Any:
    return standin_engine(LLAMA_CPP)


def written(mix: dict[str, str], engine: Any, path: Path) -> str:
    return with_quant(load_recipe("demo"), "SEARCHED", mix, SPACE, FILE, engine, path)


def test_the_written_recipe_is_the_given_one_with_the_mix(
    mix: dict[str, str], engine: Any, tmp_path: Path
) -> None:
    loaded, path = load_recipe("demo"), tmp_path / "found.yaml"
    again = parse_recipe(written(mix, engine, path), path)
    assert [q.name for q in again.quants] == [*(q.name for q in loaded.quants), "SEARCHED"]
    assert again.quants[:-1] == loaded.quants
    assert again.recipe.score == loaded.recipe.score
    tensors = ModelTensors(FILE.tensors, FILE.architecture)
    resolved = tensors.resolve(again.quants[-1], LLAMA_CPP)
    assert {n: resolved.types[n] for n in mix} == mix
    assert not resolved.problems
    named = dict(rules(mix, SPACE))
    assert (named["routed_experts"], named["output"]) == ("iq2_xxs", "q8_0")
    assert "attention" not in named, "it has two types"
    assert sum("attn_" in selector for selector in named) == 2


def test_the_base_type_is_that_of_most_weights(mix: dict[str, str], engine: Any) -> None:
    assert base_type(mix, SPACE, engine) == "Q8_0"
    assert base_type(dict.fromkeys(mix, "q4_K"), SPACE, engine) == "Q4_K"


def test_a_recipe_that_is_not_the_mix_is_refused(
    mix: dict[str, str], engine: Any, tmp_path: Path
) -> None:
    with pytest.raises(InternalError, match="another type for output_norm"):
        written({**mix, "output_norm.weight": "q8_0"}, engine, tmp_path / "x.yaml")
