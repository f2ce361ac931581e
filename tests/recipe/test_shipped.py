"""The shipped recipes: valid, and the field's own scripts tensor for tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.formats.gguf import read_gguf
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP
from cook.paths import demo_dir
from cook.recipe.check import check_recipe
from cook.recipe.lint import lint
from cook.recipe.load import load_recipe, shipped_recipes
from cook.recipe.rules import ModelTensors, predicted_bpw, predicted_bytes
from tests.recipe.conftest import Tensors, resolve

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

Shapes = dict[str, tuple[int, ...]]
Reader = Callable[[Path, Tensors], dict[str, str]]


@pytest.mark.parametrize("name", NAMES)
def test_valid_named_and_commented(name: str) -> None:
    assert sorted(shipped_recipes()) == NAMES
    loaded = load_recipe(name)
    assert loaded.recipe.name == name
    assert loaded.recipe.description
    schema = "# yaml-language-server: $schema=../cook/recipe/recipe.schema.json"
    assert loaded.text.startswith(schema)
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


def ffn(layer: int, kind: str, width: int, inner: int, *experts: int) -> Shapes:
    sides: Shapes = {"up": (width, inner), "gate": (width, inner), "down": (inner, width)}
    return {f"blk.{layer}.ffn_{w}{kind}.weight": (*shape, *experts) for w, shape in sides.items()}


def moe(
    layers: int, width: int, inner: int, attention: Shapes, dense: int = 0, experts: int = 8
) -> Shapes:
    """Matrices of a mixture of experts whose first layer, if it is ``dense``, is as wide."""
    shapes: Shapes = dict.fromkeys(("token_embd.weight", "output.weight"), (width, 151_552))
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_{part}.weight": shape for part, shape in attention.items()}
        if i == 0 and dense:
            shapes |= ffn(i, "", width, dense)
        else:
            shapes |= ffn(i, "_exps", width, inner, experts) | ffn(i, "_shexp", width, inner)
    return shapes


DEEPSEEK: Shapes = {
    "q_a": (7168, 1536),
    "q_b": (1536, 24576),
    "kv_a_mqa": (7168, 576),
    "k_b": (128, 512, 128),
    "v_b": (512, 128, 128),
    "output": (16384, 7168),
}
QWEN: Shapes = {**dict.fromkeys("qkv", (2048, 512)), "output": (4096, 2048)}


@pytest.mark.parametrize(
    ("name", "architecture", "shapes"),
    [
        ("deepseek-self-draft", "deepseek2", moe(3, 7168, 2048, DEEPSEEK, 8192)),
        ("qwen3-coder-30b-iq1kt", "qwen3moe", moe(2, 2048, 768, QWEN)),
    ],
)
def test_it_fits_its_shapes(
    name: str, architecture: str, shapes: Shapes, tensors: Callable[..., Tensors]
) -> None:
    """MLA's attn_k_b has rows of 128: the recipe must not need a fallback."""
    listed = tensors({n: s for n, s in shapes.items() if "shexp" not in n or "qwen" not in name})
    for quant in load_recipe(name).quants:
        found = resolve(listed, quant, IK_LLAMA_CPP, architecture)
        assert not found.problems
        assert None not in found.rule_of.values()


def glm_air() -> Shapes:
    """Matrices of GLM-4.5-Air by its configuration: 46 layers and the one that predicts ahead."""
    attention: Shapes = {"q": (4096, 96 * 128), "output": (96 * 128, 4096)}
    attention |= dict.fromkeys("kv", (4096, 8 * 128))
    shapes = moe(47, 4096, 1408, attention, 10_944, experts=128)
    shapes["blk.46.nextn.eh_proj.weight"] = (2 * 4096, 4096)
    for own in ("embed_tokens", "shared_head_head"):
        shapes[f"blk.46.nextn.{own}.weight"] = shapes["output.weight"]
    return shapes


def test_glm_air_head_plans_from_a_tensor_list(tmp_path: Path) -> None:
    """Without a weight: every form of the head, its size, and nothing of the trunk."""
    listed = tmp_path / "glm-4.5-air.tensors.tsv"
    shapes = glm_air()
    lines = (f"{n}\t{' x '.join(map(str, shape))}\tbf16\n" for n, shape in shapes.items())
    listed.write_text("".join(lines))
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
