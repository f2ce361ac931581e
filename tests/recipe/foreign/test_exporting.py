"""Export: the same types by each format, and a refusal for what a format cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.errors import InputError, RecipeError
from cook.formats.gguf import TensorInfo
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.foreign import Format
from cook.recipe.foreign.exporting import export_quant
from cook.recipe.foreign.importing import import_recipe
from cook.recipe.load import LoadedRecipe, load_recipe
from cook.recipe.rules import ModelTensors, resolve

Tensors = tuple[TensorInfo, ...]
Make = Callable[[str], LoadedRecipe]
LING = ["IQ1_KT", "IQ1_KT-PUFFED", "IQ2_KL"]


@pytest.mark.parametrize("name", LING)
@pytest.mark.parametrize("wanted", [Format.CUSTOM_Q, Format.SCRIPT, Format.RECIPE])
@pytest.mark.parametrize("with_model", [True, False])
def test_the_shipped_recipe_comes_back(
    name: str, wanted: Format, with_model: bool, ling: Tensors, tmp_path: Path
) -> None:
    loaded = load_recipe("ling-flash-iq1kt")
    quant = next(q for q in loaded.quants if q.name == name)
    expected = resolve(ling, quant, IK_LLAMA_CPP, "bailingmoe2").types
    model = ModelTensors(ling, "bailingmoe2") if with_model else None
    exported = export_quant(loaded, name, wanted, model)
    (tmp_path / "f").write_text(exported.text)
    back = import_recipe(tmp_path / "f", format=wanted, type=quant.ftype).loaded
    found = resolve(ling, back.quants[0], IK_LLAMA_CPP, "bailingmoe2").types
    # What no rule of the script hits would be the mixture's: nothing may be left to it.
    assert dict(found) == dict(expected)
    assert exported.flavour == IK_LLAMA_CPP


@pytest.mark.parametrize("with_model", [True, False])
def test_llama_cpp_formats_come_back(
    with_model: bool, recipe: Make, ling: Tensors, tmp_path: Path
) -> None:
    loaded = recipe(
        "quants:\n- name: A\n  type: Q4_K_M\n  rules: [{attn_q: q6_K}, {routed_experts: q2_K},"
        " {shared_experts: q5_K}, {'re:output': q8_0}]\n"
    )
    expected = resolve(ling, loaded.quants[0], LLAMA_CPP, "").types
    for wanted in (Format.TENSOR_TYPE_FILE, Format.SCRIPT):
        model = ModelTensors(ling, "") if with_model else None
        text = export_quant(loaded, None, wanted, model).text
        (tmp_path / "f").write_text(text)
        back = import_recipe(tmp_path / "f", format=wanted, type="Q4_K_M").loaded
        assert dict(resolve(ling, back.quants[0], LLAMA_CPP, "").types) == dict(expected)


@pytest.mark.parametrize(
    ("rule", "wanted", "why"),
    [
        ("'attn_(q|k){1,2}': q8_0", Format.CUSTOM_Q, "splits the rules at every comma"),
        ("'attn_[A-Z]': q8_0", Format.TENSOR_TYPE_FILE, "makes patterns lower-case"),
        ("'attn_\\D': q8_0", Format.TENSOR_TYPE_FILE, "makes patterns lower-case"),
        ("'attn q': q8_0", Format.TENSOR_TYPE_FILE, "holds a blank"),
        ("'attn q': q8_0", Format.RECIPE, "holds a blank"),
        ("'attn\\=q': q8_0", Format.RECIPE, "before the first `=`"),
        ("mtp: q8_0", Format.RECIPE, "no pattern says `mtp`"),
        ("other: q8_0", Format.RECIPE, "no pattern says `other`"),
        ("attn_q: iq4_k", Format.TENSOR_TYPE_FILE, "llama.cpp, which has no iq4_k"),
        ("attn_q: nvfp4", Format.CUSTOM_Q, "ik_llama.cpp, which has no nvfp4"),
    ],
)
def test_what_a_format_cannot_say(rule: str, wanted: Format, why: str, recipe: Make) -> None:
    loaded = recipe(f"quants:\n- name: A\n  type: Q4_0\n  rules: [{{{rule}}}]\n")
    with pytest.raises(RecipeError, match=re.escape(why)) as caught:
        export_quant(loaded, None, wanted)
    assert caught.value.problems[0].line == 7


def test_with_tensors_every_format_says_it(recipe: Make, small: Tensors, tmp_path: Path) -> None:
    loaded = recipe(
        "quants:\n- name: A\n  type: Q4_0\n"
        "  rules: [{'attn_[^A-Z]{1,2}\\.': q8_0}, {other: q5_0}]\n"
    )
    expected = dict(resolve(small, loaded.quants[0], LLAMA_CPP, "").types)
    for wanted in (Format.CUSTOM_Q, Format.RECIPE, Format.TENSOR_TYPE_FILE):
        (tmp_path / "f").write_text(
            export_quant(loaded, None, wanted, ModelTensors(small, "")).text
        )
        back = import_recipe(tmp_path / "f", format=wanted, type="Q4_0").loaded
        assert dict(resolve(small, back.quants[0], LLAMA_CPP, "").types) == expected


def test_which_quant(recipe: Make) -> None:
    with pytest.raises(InputError, match="which quant") as caught:
        export_quant(load_recipe("ling-flash-iq1kt"), None, Format.RECIPE)
    assert caught.value.hint == "--quant IQ1_KT | IQ1_KT-PUFFED | IQ2_KL"
    with pytest.raises(InputError, match="no quant X"):
        export_quant(load_recipe("ling-flash-iq1kt"), "X", Format.RECIPE)
    with pytest.raises(InputError, match="makes no quants"):
        export_quant(recipe("drafts: [{name: d, source: d.gguf}]"), None, Format.RECIPE)


def test_rules_that_the_engine_would_ignore(recipe: Make) -> None:
    loaded = recipe("quants:\n- {name: A, type: BF16, rules: [{attention: q8_0}]}\n")
    with pytest.raises(RecipeError, match="ignores every rule"):
        export_quant(loaded, None, Format.SCRIPT)


def test_a_quant_without_rules_is_its_base_type(recipe: Make, tmp_path: Path) -> None:
    loaded = recipe("quants:\n- {name: A, type: Q4_K_M}\n- {name: B, type: Q4_0, mixture: pure}\n")
    for name, pure in (("A", False), ("B", True)):
        text = export_quant(loaded, name, Format.SCRIPT).text
        assert ("--pure" in text) is pure
        (tmp_path / "f.sh").write_text(text)
        (quant,) = import_recipe(tmp_path / "f.sh").loaded.quants
        assert (quant.rules, quant.mixture) == ((), "pure" if pure else "engine")
