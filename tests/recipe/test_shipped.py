"""The shipped recipes: valid, and the field's own scripts tensor for tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.formats.gguf import TensorInfo, read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.lint import lint
from cook.recipe.load import load_recipe, shipped_recipes
from cook.recipe.rules import ModelTensors, predicted_bpw, predicted_bytes, resolve

DATA = Path(__file__).parents[1] / "data"
NAMES = [
    "deepseek-self-draft",
    "demo",
    "glm-4.5-air-head",
    "ling-flash-iq1kt",
    "qwen3-0.6b-dense",
    "qwen3-coder-30b-iq1kt",
    "smollm2-135m",
]

Tensors = tuple[TensorInfo, ...]
Reader = Callable[[Path, Tensors], dict[str, str]]


def test_all_are_here() -> None:
    assert sorted(shipped_recipes()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_valid_named_and_commented(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.recipe.name == name
    assert loaded.recipe.description
    assert loaded.text.startswith(
        "# yaml-language-server: $schema=../cook/recipe/recipe.schema.json"
    )
    assert loaded.text.count("#") > 5


@pytest.mark.parametrize("name", ["IQ1_KT", "IQ1_KT-PUFFED", "IQ2_KL"])
def test_ling_equals_the_script(name: str, ling: Tensors, script_types: Reader) -> None:
    quant = next(q for q in load_recipe("ling-flash-iq1kt").quants if q.name == name)
    found = resolve(ling, quant, IK_LLAMA_CPP, "bailingmoe2")
    assert dict(found.types) == script_types(DATA / f"make-quant-{name}.sh", ling)
    assert not found.problems


def test_ling_bits_per_weight(ling: Tensors) -> None:
    quant = load_recipe("ling-flash-iq1kt").quants[0]
    bpw = predicted_bpw(ling, resolve(ling, quant, IK_LLAMA_CPP, "bailingmoe2"))
    assert bpw is not None
    assert 1.85 < bpw < 1.95


def test_no_size_where_the_mixture_decides(ling: Tensors) -> None:
    quant = load_recipe("demo").quants[0]
    assert quant.mixture == "engine"
    assert predicted_bytes(ling, resolve(ling, quant, LLAMA_CPP, "bailingmoe2")) is None


def test_demo_is_clean_on_its_models() -> None:
    file = read_gguf(demo_dir() / "draft-f16.gguf")
    model = ModelTensors(file.tensors, file.architecture)
    assert lint(load_recipe("demo"), model=model, flavour=LLAMA_CPP) == ()


def _moe(layers: int, dense: int, hidden: int, ff: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (hidden, 1024),
        "output.weight": (hidden, 1024),
        "output_norm.weight": (hidden,),
    }
    for i in range(layers):
        if i < dense:
            shapes |= {f"blk.{i}.ffn_{w}.weight": (hidden, 4 * ff) for w in ("up", "gate")}
            shapes[f"blk.{i}.ffn_down.weight"] = (4 * ff, hidden)
        else:
            shapes |= {f"blk.{i}.ffn_{w}_exps.weight": (hidden, ff, 8) for w in ("up", "gate")}
            shapes[f"blk.{i}.ffn_down_exps.weight"] = (ff, hidden, 8)
    return shapes


def test_deepseek_fits_its_shapes(tensors) -> None:  # type: ignore[no-untyped-def]
    """MLA's attn_k_b has rows of 128: the recipe must not need a fallback."""
    shapes = _moe(3, 1, 7168, 2048)
    for i in range(3):
        shapes |= {
            f"blk.{i}.attn_q_a.weight": (7168, 1536),
            f"blk.{i}.attn_q_b.weight": (1536, 24576),
            f"blk.{i}.attn_kv_a_mqa.weight": (7168, 576),
            f"blk.{i}.attn_k_b.weight": (128, 512, 128),
            f"blk.{i}.attn_v_b.weight": (512, 128, 128),
            f"blk.{i}.attn_output.weight": (16384, 7168),
        }
    shapes |= {
        f"blk.{i}.ffn_{w}_shexp.weight": (7168, 2048) for i in (1, 2) for w in ("up", "gate")
    }
    shapes |= {f"blk.{i}.ffn_down_shexp.weight": (2048, 7168) for i in (1, 2)}
    for quant in load_recipe("deepseek-self-draft").quants:
        found = resolve(tensors(shapes), quant, IK_LLAMA_CPP, "deepseek2")
        assert not found.problems
        assert None not in found.rule_of.values()


def test_qwen3_coder_fits_its_shapes(tensors) -> None:  # type: ignore[no-untyped-def]
    shapes = _moe(2, 0, 2048, 768)
    for i in range(2):
        shapes |= {f"blk.{i}.attn_{w}.weight": (2048, 512) for w in "qkv"}
        shapes[f"blk.{i}.attn_output.weight"] = (4096, 2048)
    for quant in load_recipe("qwen3-coder-30b-iq1kt").quants:
        found = resolve(tensors(shapes), quant, IK_LLAMA_CPP, "qwen3moe")
        assert not found.problems
        assert None not in found.rule_of.values()


def _glm_air() -> dict[str, tuple[int, ...]]:
    """Matrices of GLM-4.5-Air by its configuration: 46 layers and the one that predicts ahead."""
    width, vocabulary, ff, experts = 4096, 151_552, 1408, 128
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, vocabulary),
        "output.weight": (width, vocabulary),
    }
    for i in range(47):
        shapes |= {
            f"blk.{i}.attn_q.weight": (width, 96 * 128),
            f"blk.{i}.attn_k.weight": (width, 8 * 128),
            f"blk.{i}.attn_v.weight": (width, 8 * 128),
            f"blk.{i}.attn_output.weight": (96 * 128, width),
        }
        if i == 0:
            shapes |= {f"blk.{i}.ffn_{w}.weight": (width, 10_944) for w in ("gate", "up")}
            shapes[f"blk.{i}.ffn_down.weight"] = (10_944, width)
            continue
        for kind, last in (("exps", (experts,)), ("shexp", ())):
            shapes |= {f"blk.{i}.ffn_{w}_{kind}.weight": (width, ff, *last) for w in ("gate", "up")}
            shapes[f"blk.{i}.ffn_down_{kind}.weight"] = (ff, width, *last)
    shapes["blk.46.nextn.eh_proj.weight"] = (2 * width, width)
    for own in ("embed_tokens", "shared_head_head"):
        shapes[f"blk.46.nextn.{own}.weight"] = (width, vocabulary)
    return shapes


def test_glm_air_head_plans_from_a_tensor_list(tmp_path: Path) -> None:
    """Without a weight: every form of the head, its size, and nothing of the trunk."""
    listed = tmp_path / "glm-4.5-air.tensors.tsv"
    shapes = _glm_air()
    lines = (f"{n}\t{' x '.join(map(str, shape))}\tbf16" for n, shape in shapes.items())
    listed.write_text("\n".join(lines) + "\n")
    found = check_recipe(load_recipe("glm-4.5-air-head"), None, listed)
    assert [p.message for p in found.problems if p.severity == "error"] == []
    assert [quant.name for quant in found.quants] == [
        "H-BF16",
        *(f"H-{mtp}-OUT-{out}" for out in ("q8_0", "q4_0") for mtp in ("q8_0", "q5_0", "q4_0")),
    ]
    head = [n for n in shapes if not n.startswith("blk.") or n.startswith("blk.46.")]
    weights = sum(math.prod(shapes[name]) for name in head)
    sizes = {quant.name: quant.size_bytes or 0 for quant in found.quants}
    assert sizes["H-BF16"] == 2 * weights
    assert sizes["H-q8_0-OUT-q8_0"] == weights * 34 // 32
    own = math.prod(shapes["output.weight"])
    assert sizes["H-q8_0-OUT-q8_0"] - sizes["H-q8_0-OUT-q4_0"] == 2 * own // 32 * 16
    assert all(sum(q.tensors_of_type.values()) == len(head) for q in found.quants)
