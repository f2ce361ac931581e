"""Resolution: first match wins, kept tensors stay, and what an engine would silently change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.formats.gguf import TensorInfo
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name
from cook.recipe.groups import Group, group_of
from cook.recipe.pattern import parse_pattern
from cook.recipe.rules import ModelTensors, Quant, Rule, quantizable
from tests.recipe.conftest import Tensors, resolve


def quant(*rules: tuple[str, str], ftype: str = "Q8_0", mixture: str = "pure") -> Quant:
    return Quant("Q", ftype, tuple(Rule(s, t, "Q") for s, t in rules), mixture)


def test_first_match_wins(small: Tensors) -> None:
    found = resolve(small, quant(("attn_q", "q4_K"), ("attention", "q6_K")), LLAMA_CPP)
    assert found.types["blk.0.attn_q.weight"] == "q4_K"
    assert found.types["blk.0.attn_output.weight"] == "q6_K"
    assert found.rule_of["blk.1.attn_q.weight"] == 0
    assert found.rule_of["blk.1.attn_k.weight"] == 1
    assert found.complete


def test_kept_tensors_keep_their_type(small: Tensors) -> None:
    found = resolve(small, quant((".*", "q4_0")), LLAMA_CPP)
    assert found.kept == {"output_norm.weight", "blk.1.ffn_gate_inp.weight"}
    assert {found.types[name] for name in found.kept} == {"bf16"}
    assert not found.kept & found.rule_of.keys()


def test_a_mixture_leaves_types_open_but_of_unquantized_base_types(small: Tensors) -> None:
    engine = quant(("attention", "q6_K"), ftype="Q4_0", mixture="engine")
    found = resolve(small, engine, LLAMA_CPP)
    assert found.types["output.weight"] is None
    assert not found.complete
    for ftype in ("F16", "BF16", "F32"):
        found = resolve(small, replace(engine, ftype=ftype), LLAMA_CPP)
        assert found.types["blk.0.ffn_down.weight"] == ftype.lower()


# llama.cpp pull requests 28474 (rows of 2,688, 1,856) and 20159 (1,152), issues 14996 and 6614
# (14,464), ik_llama.cpp pull request 299 (1,408).
@pytest.mark.parametrize(
    ("ftype", "flavour", "written", "bits"),
    [
        ("Q4_K_M", LLAMA_CPP, "q5_0", "5.5 bits a weight for 4.5"),
        ("Q4_K_M", IK_LLAMA_CPP, "q5_0", "5.5 bits a weight for 4.5"),
        ("Q2_K", LLAMA_CPP, "q4_0", "4.5 bits a weight for 2.625"),
        ("Q6_K", LLAMA_CPP, "q8_0", "8.5 bits a weight for 6.562"),
        ("IQ4_XS", LLAMA_CPP, "iq4_nl", "4.5 bits a weight for 4.25"),
    ],
)
def test_rows_of_a_mixture_that_do_not_divide_are_reported_with_what_is_written(
    small: Tensors, ftype: str, flavour: str, written: str, bits: str
) -> None:
    asked = quant(ftype=ftype, mixture="engine")
    (found,) = resolve(small, asked, flavour, "llama").problems
    assert found.severity == "warning"
    assert f"rows of 320 do not divide by 256 as {ftype[:4].lower()}" in found.message.lower()
    assert f"{flavour} writes {written} in its place, {bits} (" in found.message
    assert "% of the weights)" in found.message
    plain = quant(ftype="Q8_0", mixture="engine")
    assert resolve(small, plain, flavour, "llama").problems == ()


@pytest.mark.parametrize(
    ("flavour", "type_name", "written"),
    [
        (LLAMA_CPP, "q4_K", "q5_0"),
        (LLAMA_CPP, "iq2_xs", "iq4_nl"),
        (IK_LLAMA_CPP, "q5_K", "q6_0"),
        (IK_LLAMA_CPP, "iq1_kt", "iq4_nl"),
    ],
)
def test_rows_that_do_not_divide_name_the_fallback(
    small: Tensors, flavour: str, type_name: str, written: str
) -> None:
    found = resolve(small, quant(("dense_ffn", type_name)), flavour)
    assert found.types["blk.0.ffn_down.weight"] == written
    assert found.types["blk.0.ffn_up.weight"] == type_name
    (problem,) = found.problems
    assert problem.severity == "error"
    assert problem.message == (
        f"quant Q: rows of 320 do not divide by 256 as {type_name} requires: "
        f"{flavour} would silently write {written} (blk.0.ffn_down.weight)"
    )


def test_rows_without_a_way_out(tensors: Callable[..., Tensors]) -> None:
    odd = tensors({"blk.0.ffn_up.weight": (33, 64)})
    (problem,) = resolve(odd, quant(("dense_ffn", "q8_0")), IK_LLAMA_CPP).problems
    assert problem.severity == "error"
    assert "crash" in problem.message


def test_many_tensors_are_one_problem(tensors: Callable[..., Tensors]) -> None:
    odd = tensors({f"blk.{i}.ffn_down.weight": (320, 64) for i in range(30)})
    (problem,) = resolve(odd, quant(("dense_ffn", "q4_K")), LLAMA_CPP).problems
    assert problem.message.endswith("(blk.0.ffn_down.weight, blk.1.ffn_down.weight and 28 more)")


def test_embeddings_are_never_interleaved(small: Tensors) -> None:
    (problem,) = resolve(small, quant(("embeddings", "q4_k_r4")), IK_LLAMA_CPP).problems
    assert problem.severity == "warning"
    assert "q4_k_r4 cannot be interleaved here and becomes q4_K" in problem.message


def test_a_hanging_rule_is_a_problem_that_names_it(ling: Tensors) -> None:
    found = resolve(ling, quant(("(?:(?:.{1,9}){1,9}){1,9}[A-Z]$", "q4_K")), LLAMA_CPP)
    assert "takes too long" in found.problems[0].message


@pytest.mark.parametrize(
    ("name", "shape", "flavour", "expected"),
    [
        ("blk.0.attn_q.weight", (256, 256), LLAMA_CPP, True),
        ("blk.0.attn_q.bias", (256, 256), LLAMA_CPP, False),
        ("blk.0.attn_q.weight", (256,), LLAMA_CPP, False),
        ("blk.0.attn_q.weight", (256, 1, 1), LLAMA_CPP, False),
        ("blk.0.attn_norm.weight", (256, 256), LLAMA_CPP, False),
        ("blk.0.ffn_gate_inp.weight", (256, 8), IK_LLAMA_CPP, False),
        ("blk.0.ffn_gate_inp_shexp.weight", (256, 8), IK_LLAMA_CPP, True),
        ("blk.0.ssm_x.weight", (256, 256), IK_LLAMA_CPP, False),
        ("blk.0.ssm_x.weight", (256, 256), LLAMA_CPP, True),
        ("blk.0.laurel_l.weight", (256, 64), LLAMA_CPP, False),
        ("blk.0.laurel_l.weight", (256, 64), IK_LLAMA_CPP, True),
        ("position_embd.weight", (256, 64), LLAMA_CPP, False),
        ("weight", (256, 64), LLAMA_CPP, True),
    ],
)
def test_quantizable(name: str, shape: tuple[int, ...], flavour: str, expected: bool) -> None:
    assert quantizable(name, shape, "bf16", flavour) is expected
    assert not quantizable(name, shape, "i32", flavour)


WORDS = ["attn_q", "attn_output", "ffn_up", "ffn_down_exps", "ffn_up_shexp", "ffn_gate_inp"]
NAMES = [f"blk.{i}.{word}.weight" for i in (0, 1, 11, 12) for word in WORDS]
NAMES += ["token_embd.weight", "output.weight", "output_norm.weight"]
SELECTORS = [*Group, "output", "re:output", "attn", r"blk\.1\.", r"blk\.(1|12)\.ffn"]
SELECTORS += [r"^blk\.\d{2}\.", ".*", "exps", "nothing", r"_(up|down)"]
TYPES = ["q4_0", "q8_0", "q4_K", "iq1_kt", "f16", "q4_k_r4"]


@given(
    rules=st.lists(st.tuples(st.sampled_from(SELECTORS), st.sampled_from(TYPES)), max_size=8),
    names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1),
    mixture=st.sampled_from(["pure", "engine"]),
)
def test_resolve_equals_brute_force(
    rules: list[tuple[str, str]], names: list[str], mixture: str
) -> None:
    """One tensor, one rule at a time, as the engines' loops read."""
    listed = tuple(TensorInfo(n, (512, 512), by_name("f16").id) for n in names)
    found = resolve(listed, quant(*rules, mixture=mixture), IK_LLAMA_CPP)
    for name in names:
        if name == "output_norm.weight" or "ffn_gate_inp" in name:
            assert found.types[name] == "f16"
            continue
        wanted: str | None = "q8_0" if mixture == "pure" else None
        for selector, type_name in rules:
            if selector in frozenset(Group):
                hit = group_of(name, "") == selector
            else:
                hit = parse_pattern(selector.removeprefix("re:")).search(name)
            if hit:
                wanted = type_name
                break
        if name == "token_embd.weight" and wanted == "q4_k_r4":
            wanted = "q4_K"
        assert found.types[name] == wanted


def test_the_head_of_a_model_alone(tensors: Callable[..., Tensors]) -> None:
    trunk = ("token_embd.weight", "output.weight", "blk.0.attn_q.weight")
    own = ("attn_q", "ffn_down_exps", "ffn_gate_inp", "nextn.eh_proj")
    names = (*trunk, *(f"blk.1.{name}.weight" for name in own))
    rules = (("mtp.attention", "q8_0"), ("mtp.eh_proj", "f16"), ("mtp", "q4_0"), ("output", "q5_0"))
    head = replace(quant(*rules, ftype="Q6_K"), part="head")
    model = ModelTensors(tensors(dict.fromkeys(names, (256, 256))), "glm4moe")
    assert model.resolve(head, LLAMA_CPP).types == {
        "token_embd.weight": "q6_K",
        "output.weight": "q5_0",
        "blk.1.attn_q.weight": "q8_0",
        "blk.1.ffn_down_exps.weight": "q4_0",
        "blk.1.ffn_gate_inp.weight": "bf16",
        "blk.1.nextn.eh_proj.weight": "f16",
    }
    assert model.resolve(replace(head, part=None), LLAMA_CPP).types["blk.0.attn_q.weight"] == "q6_K"
    assert ModelTensors(model.tensors[:3], "glm4moe").of(head).tensors == []
