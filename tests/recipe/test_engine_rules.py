"""What is sent to an engine: the same types when matched in either engine's way."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import Engine, TypeRule
from cook.errors import InputError
from cook.formats.gguf import TensorInfo, read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name
from cook.paths import demo_dir
from cook.recipe.engine_rules import MAX_PATTERN, to_engine_rules
from cook.recipe.load import load_recipe
from cook.recipe.rules import Quant, Resolution, Rule
from tests.recipe.conftest import Tensors, resolve


def as_llama_cpp(rules: tuple[TypeRule, ...], name: str) -> str | None:
    """--tensor-type: split at the first `=`, pattern lower-cased, first hit wins."""
    for rule in rules:
        pattern, _, type_name = f"{rule.pattern}={rule.type}".partition("=")
        if re.search(pattern.lower(), name):
            return type_name
    return None


def as_ik(rules: tuple[TypeRule, ...], name: str) -> str | None:
    """--custom-q: split at commas, then at the first `=`, case kept, first hit wins."""
    for item in ",".join(f"{rule.pattern}={rule.type}" for rule in rules).split(","):
        pattern, _, type_name = item.partition("=")
        if item and re.search(pattern, name):
            return type_name
    return None


def check(found: Resolution) -> tuple[TypeRule, ...]:
    rules = to_engine_rules(found)
    for name, wanted in found.types.items():
        if name in found.kept:
            continue
        assert as_llama_cpp(rules, name) == wanted, name
        assert as_ik(rules, name) == wanted, name
    for rule in rules:
        assert len(rule.pattern) <= MAX_PATTERN
        assert not set(rule.pattern) & set(",= \t\n")
        assert rule.pattern == rule.pattern.lower()
    return rules


def listed(*names: str) -> Tensors:
    return tuple(TensorInfo(name, (256, 256), by_name("f16").id) for name in names)


@pytest.mark.parametrize("name", ["ling-flash-iq1kt", "demo"])
def test_shipped_recipes_on_ling(name: str, ling: Tensors) -> None:
    for quant in load_recipe(name).quants:
        rules = check(resolve(ling, quant, IK_LLAMA_CPP, "bailingmoe2"))
        assert len(rules) <= 6


def test_layers_are_alternations(ling: Tensors) -> None:
    quant = Quant("Q", "Q8_0", (Rule(r"blk\.[0-3]\.attn", "q6_K"),), "pure")
    rules = check(resolve(ling, quant, LLAMA_CPP, "bailingmoe2"))
    attention = r"^blk\.(?:0|1|2|3)\.(?:attn_qkv\.weight|attn_output\.weight)$"
    assert TypeRule(attention, "q6_K") in rules


def test_what_the_mixture_decides_is_hit_by_no_rule(ling: Tensors) -> None:
    quant = Quant("Q", "Q4_K_M", (Rule("output", "q8_0"), Rule(r"blk\.1\.", "q6_K")), "engine")
    check(resolve(ling, quant, LLAMA_CPP, "bailingmoe2"))
    assert check(resolve(ling, Quant("Q", "Q4_K_M"), LLAMA_CPP, "bailingmoe2")) == ()


def test_a_thousand_layers_stay_within_an_argument() -> None:
    words = ("ffn_up", "ffn_down", "attn_q")
    tensors = listed(*(f"blk.{i}.{word}.weight" for i in range(1000) for word in words))
    quant = Quant("Q", "Q8_0", (Rule(r"blk\.\d*[02468]\.", "q4_K"),), "pure")
    rules = check(resolve(tensors, quant, LLAMA_CPP))
    assert sum(len(r.pattern) for r in rules) < 20_000


def test_names_that_no_rule_can_tell_apart() -> None:
    quant = Quant("Q", "Q8_0", (Rule("a,b", "q4_K"),), "pure")
    with pytest.raises(InputError, match="no engine rule can tell"):
        to_engine_rules(resolve(listed("a,b.weight", "a=b.weight"), quant, LLAMA_CPP))


TENSOR_NAMES = st.one_of(
    st.builds(
        lambda layer, word: f"blk.{layer}.{word}.weight",
        st.integers(0, 130),
        st.sampled_from(["attn_q", "attn_output", "ffn_up", "ffn_up_exps", "nextn.eh_proj"]),
    ),
    st.sampled_from(["token_embd.weight", "output.weight", "mm.0.weight", "A_b.weight"]),
)


@given(
    types=st.dictionaries(
        TENSOR_NAMES, st.sampled_from(["q4_K", "q8_0", "iq1_kt", None]), min_size=1, max_size=60
    )
)
def test_any_assignment_survives_both_engines(types: dict[str, str | None]) -> None:
    check(Resolution(types, dict.fromkeys(types), frozenset()))


def dry_run(*command: str) -> dict[str, str]:
    """Tensor -> type as a dry run tells it; tensors that stay are left out."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    head = re.compile(r"\[\s*\d+/\s*\d+\]\s+(\S+)\s+- \[")
    for part in re.split(r"(?=\[\s*\d+/\s*\d+\]\s+\S+\s+- \[)", done.stderr):
        name = head.match(part)
        new = re.search(r"converting to (\S+) \.\.|MiB -> +[\d.]+ MiB \((\S+)\)", part)
        if name and new:
            found[name[1]] = new[1] or new[2]
    return found


MESSY = (
    Rule(r"blk\.1\.ffn_(gate|up)_exps", "iq4_xs", "Q"),
    Rule("re:output", "q6_K", "Q"),
    Rule("shared_experts", "q5_K", "Q"),
    Rule(r"attn_[a-z]{3}\.", "q4_1", "Q"),
    Rule("embeddings", "q5_1", "Q"),
)


DRAFT = str(demo_dir() / "draft-f16.gguf")


def demo_quants(flavour: str, *quants: Quant) -> list[tuple[Quant, Resolution]]:
    file = read_gguf(Path(DRAFT))
    all_quants = (Quant("MESSY", "Q4_0", MESSY, "pure"), *quants)
    return [(q, resolve(file.tensors, q, flavour, file.architecture)) for q in all_quants]


def alike(said: dict[str, str], found: Resolution) -> None:
    """What the engine says is what was resolved; what its own mixture decides is left to it."""
    expected = {n: t for n, t in found.types.items() if n not in found.kept}
    assert said.keys() == expected.keys()
    ours = {n: t for n, t in expected.items() if t is not None}
    assert ours
    assert {n: said[n] for n in ours} == ours


@pytest.mark.engine
def test_llama_cpp_resolves_alike(bundled: Engine) -> None:
    for quant, found in demo_quants(LLAMA_CPP, *(q for q in load_recipe("demo").quants if q.rules)):
        rules = (("--tensor-type", f"{r.pattern}={r.type}") for r in to_engine_rules(found))
        flags = [word for rule in rules for word in rule]
        tool = str(bundled.tool("quantize"))
        alike(dry_run(tool, "--dry-run", *flags, DRAFT, quant.ftype), found)


@pytest.mark.ik
def test_ik_resolves_alike(ik_engine: Engine, tmp_path: Path) -> None:
    for quant, found in demo_quants(IK_LLAMA_CPP, *load_recipe("ling-flash-iq1kt").quants):
        custom = ",".join(f"{r.pattern}={r.type}" for r in to_engine_rules(found))
        flags = ("--dry-run", "--ignore-imatrix-rules", "--custom-q", custom)
        output = str(tmp_path / "out.gguf")
        said = dry_run(str(ik_engine.tool("quantize")), *flags, DRAFT, output, quant.ftype, "1")
        alike(said, found)
