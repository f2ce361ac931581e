"""Export: the same types by each format, and a refusal for what a format cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.foreign import Format
from cook.recipe.foreign.exporting import PATTERNS, export_quant
from cook.recipe.foreign.importing import import_recipe
from cook.recipe.groups import group_of
from cook.recipe.load import LoadedRecipe, load_recipe
from cook.recipe.pattern import parse_pattern
from cook.recipe.rules import ModelTensors
from tests.recipe.conftest import Tensors, resolve

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
    assert dict(found) == dict(expected), "nothing is left to a mixture"
    assert exported.flavour == IK_LLAMA_CPP


def test_rules_come_back(recipe: Make, small: Tensors, tmp_path: Path) -> None:
    plain = "{routed_experts: q2_K}, {'re:output': q8_0}"
    own = "{'attn_[^A-Z]{1,2}\\.': q8_0}, {other: q5_0}"  # no format says it without the tensors
    flat = (Format.TENSOR_TYPE_FILE, Format.SCRIPT)
    named = ModelTensors(small)
    for rules, formats, model in ((plain, flat, None), (f"{plain}, {own}", Format, named)):
        loaded = recipe(f"quants:\n- {{name: A, type: Q4_0, rules: [{rules}]}}\n")
        expected = resolve(small, loaded.quants[0], LLAMA_CPP).types
        for wanted in formats:
            (tmp_path / "f").write_text(export_quant(loaded, None, wanted, model).text)
            back = import_recipe(tmp_path / "f", format=wanted, type="Q4_0").loaded
            assert resolve(small, back.quants[0], LLAMA_CPP).types == expected


@pytest.mark.parametrize(
    ("rule", "wanted", "why"),
    [
        ("'attn_(q|k){1,2}': q8_0", Format.CUSTOM_Q, "splits the rules at every comma"),
        ("'attn_[A-Z]': q8_0", Format.TENSOR_TYPE_FILE, "makes patterns lower-case"),
        ("'attn q': q8_0", Format.RECIPE, "holds a blank"),
        ("'attn\\=q': q8_0", Format.RECIPE, "before the first `=`"),
        ("mtp: q8_0", Format.RECIPE, "no pattern says `mtp`"),
        ("attn_q: iq4_k", Format.TENSOR_TYPE_FILE, "llama.cpp, which has no iq4_k"),
        ("attn_q: nvfp4", Format.CUSTOM_Q, "ik_llama.cpp, which has no nvfp4"),
    ],
)
def test_what_a_format_cannot_say(rule: str, wanted: Format, why: str, recipe: Make) -> None:
    loaded = recipe(f"quants:\n- name: A\n  type: Q4_0\n  rules: [{{{rule}}}]\n")
    with pytest.raises(RecipeError, match=re.escape(why)) as caught:
        export_quant(loaded, None, wanted)
    assert caught.value.problems[0].line == 7


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


# Names of gguf-py/gguf/constants.py, across architectures; norms, biases and vectors are kept.
STEMS = re.findall(
    r"\S+",
    """
token_embd output per_layer_token_embd position_embd token_types cls cls.output dense_2_out
blk.0.attn_q blk.10.attn_k blk.3.attn_v blk.3.attn_qkv blk.0.attn_output blk.0.attn_q_a
blk.0.attn_q_b blk.0.attn_kv_a_mqa blk.0.attn_kv_b blk.0.attn_k_b blk.0.attn_v_b blk.0.attn_gate
blk.0.indexer.attn_k blk.0.cross_attn_q blk.0.attn_rel_b dec.blk.4.cross_attn_v enc.blk.1.attn_q
blk.0.ffn_up blk.0.ffn_gate blk.0.ffn_down blk.0.ffn_gate_up blk.0.ffn_latent_up enc.blk.2.ffn_up
blk.0.ffn_up_shexp blk.9.ffn_down_shexp blk.1.ffn_gate_up_shexps blk.0.ffn_gate_inp_shexp
blk.0.ffn_up_exps blk.31.ffn_down_exps blk.1.ffn_gate_up_exps blk.0.ffn_gate.7 blk.0.ffn_up_chexps
blk.0.ffn_up_exp blk.0.ffn_gate_inp blk.0.ffn_gate_tid2eid blk.0.ssm_in blk.0.ssm_out
blk.0.time_mix_key blk.0.shortconv.in_proj blk.0.nextn.eh_proj blk.0.altup_proj
""",
)


def test_the_patterns_tell_the_groups_of_known_names() -> None:
    for stem in STEMS:
        name = f"{stem}.weight"
        hit = {g for g, p in PATTERNS.items() if parse_pattern(p).search(name)}
        assert hit == ({group_of(name)} & set(PATTERNS)), name
    assert not re.search(r"[,=\s A-Z]|\{", "".join(PATTERNS.values())), "every format says them"


@given(
    st.sampled_from(["", "blk.0.", "blk.17.", "enc.blk.3.", "dec.blk.1."]),
    st.lists(
        st.sampled_from(
            ["attn_", "ffn_", "up", "gate_", "_exps", "_shexp", "inp", "cls", ".", "q"]
        ),
        max_size=4,
    ).map("".join),
)
def test_a_tensor_is_hit_by_at_most_one_pattern(block: str, stem: str) -> None:
    hit = [g for g, p in PATTERNS.items() if re.search(p, f"{block}{stem}.weight")]
    assert len(hit) <= 1
