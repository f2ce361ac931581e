"""What a search found out, in its record's words."""

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
from cook.record.search_record import ReplayedMix
from cook.scoring.fits import WholeMix
from cook.search.evaluate import Ledger
from cook.search.findings import acceptance_law, base_type, described, rules, with_quant
from cook.search.sensitivity import Sensitivity
from cook.search.space import LADDERS, Space
from tests.search.spaces import PROMPTS, Law, space


def test_a_mix_is_described_by_span_and_where_one_is_divided_by_tensor() -> None:
    model = space()
    sensitivity = Sensitivity.of(model, Ledger(Law(model, [1.0] * len(model.ties)), PROMPTS))
    attention, experts, *_ = sensitivity.spans
    mix = model.changed(model.largest, experts, "q2_K")
    mix = model.changed(mix, model.split(attention)[0], "q4_K")
    assert described(sensitivity, mix) == {
        "blk.0.attn_qkv.weight": "q4_K",
        "blk.1.attn_qkv.weight": "q4_K",
        "routed_experts": "q2_K",
    }
    assert described(sensitivity, model.largest) == {}


def whole(kld: float) -> WholeMix:
    accepted = round(700 - 500 * kld)
    return WholeMix(kld, ReplayedMix(10, 2000, accepted, 1000 - accepted, 1000, kld))


def test_one_whole_mix_in_three_judges_the_law_and_a_few_make_none() -> None:
    reference = whole(0.0).replayed
    law, warnings = acceptance_law(reference, [whole(0.02 * n) for n in range(1, 7)], 8)
    assert (law.fitted, law.held_out, warnings) == (4, 2, ())
    assert law.error == pytest.approx(0, abs=0.05)
    law, warnings = acceptance_law(reference, [whole(0.02), whole(0.04)], 8)
    assert law is None
    assert "say too little" in warnings[0]


DRAFT = demo_dir() / "draft-f16.gguf"
FILE = read_gguf(DRAFT)
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
    model = ModelFile(source([DRAFT]), FILE)
    return with_quant(load_recipe("demo"), "SEARCHED", mix, SPACE, model, engine, path)


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
