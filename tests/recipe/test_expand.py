"""extends, drop_rules and sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cook.errors import RecipeError
from cook.formats.gguf_writer import SplitLimit
from cook.recipe.expand import expand
from cook.recipe.load import LoadedRecipe, parse_recipe, resolved_text

Make = Callable[[str], LoadedRecipe]


def test_the_childs_rules_go_before_the_parents(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: C, extends: B, rules: [{output: q4_0}]}\n"
        "  - {name: A, type: Q4_K_M, rules: [{attention: q6_K}, {output: q6_K}]}\n"
        "  - {name: B, extends: A, rules: [{attention: q8_0}]}\n"
    )
    first = loaded.quants[0]
    assert first.name == "C"
    assert [str(r) for r in first.rules] == [
        "output: q4_0",
        "attention: q8_0",
        "attention: q6_K",
        "output: q6_K",
    ]
    assert [r.owner for r in first.rules] == ["C", "B", "A", "A"]
    assert first.ftype == "Q4_K_M"
    assert [r.at.line for r in first.rules if r.at] == [5, 7, 6, 6]


def test_settings_are_inherited_and_overridden(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q4_0, imatrix: false, mixture: engine, rules: [{output: q8_0}]}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: A, imatrix: true, mixture: pure, type: q5_0}\n"
        "  - {name: D, extends: A, drop_rules: [output], rules: [{attention: q6_K}]}\n"
    )
    _, b, c, d = loaded.quants
    assert (b.ftype, b.use_imatrix, b.mixture) == ("Q4_0", False, "engine")
    assert (c.ftype, c.use_imatrix, c.mixture) == ("Q5_0", True, "pure")
    assert [str(r) for r in d.rules] == ["attention: q6_K"]


def test_a_split_is_inherited_whole_and_overridden(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q4_0, split: {max_size: 45G}}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: A, split: {max_tensors: 128}}\n"
        "  - {name: D, type: Q4_0}\n"
        "sweep: {extends: C, over: {output: [q4_0]}, split: {max_size: 500M}}\n"
    )
    assert [q.split for q in loaded.quants] == [
        SplitLimit(45 * 10**9),
        SplitLimit(45 * 10**9),
        SplitLimit(None, 128),
        None,
        SplitLimit(500 * 10**6),
    ]
    again = parse_recipe(resolved_text(loaded), Path("again.yaml"))
    assert [q.split for q in again.quants] == [q.split for q in loaded.quants]


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("{}", "`split` has one limit"),
        ("{max_size: 1G, max_tensors: 3}", "`split` has one limit"),
        ("{max_size: 45}", "max_size"),
        ("{max_size: 45GiB}", "max_size"),
        ("{max_size: 0G}", "max_size"),
        ("{max_tensors: 0}", "max_tensors"),
    ],
)
def test_a_split_that_is_none(recipe: Make, split: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        recipe(f"quants: [{{name: A, type: Q4_0, split: {split}}}]")


def test_mixture_by_default(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q4_K_M}, {name: B, type: Q4_K_M, rules: [{output: q8_0}]}]"
    )
    assert [q.mixture for q in loaded.quants] == ["engine", "pure"]
    assert [q.mixture_stated for q in loaded.quants] == [False, False]


def test_sweep_is_the_grid_in_order(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, rules: [{output: q8_0}]}]\n"
        "sweep:\n"
        "  name: 's-{attention}-{2}'\n"
        "  extends: A\n"
        "  over: {attention: [q8_0, q6_k], 're:_exps': [q4_k, q2_k]}\n"
        "  rules: [{embeddings: q4_0}]\n"
    )
    assert [q.name for q in loaded.quants] == [
        "A",
        "s-q8_0-q4_K",
        "s-q8_0-q2_K",
        "s-q6_K-q4_K",
        "s-q6_K-q2_K",
    ]
    assert [str(r) for r in loaded.quants[2].rules] == [
        "attention: q8_0",
        "re:_exps: q2_K",
        "embeddings: q4_0",
        "output: q8_0",
    ]
    at = loaded.quants[2].rules[1].at
    assert (at.line, at.column) == (8, 35)


def test_sweep_over_base_types(recipe: Make) -> None:
    loaded = recipe("sweep: {over: {type: [q4_0, q8_0, q4_k_m]}}\n")
    assert [(q.name, q.ftype, q.mixture) for q in loaded.quants] == [
        ("Q4_0", "Q4_0", "engine"),
        ("Q8_0", "Q8_0", "engine"),
        ("Q4_K_M", "Q4_K_M", "engine"),
    ]


def test_several_sweeps_must_not_collide(recipe: Make) -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml:4:\d+: error: two quants named `q8_0`"):
        recipe("sweep: [{type: Q8_0, over: {output: [q8_0]}}, {type: Q8_0, over: {mtp: [q8_0]}}]")


def test_1024_quants_are_the_limit(recipe: Make) -> None:
    types = "q2_K q3_K q4_K q5_K q6_K q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl iq4_xs f16 bf16 iq3_s iq3_xxs"
    axis = f"[{', '.join(types.split())}]"
    four = "mtp: [q4_K, q5_K, q6_K, q8_0]"
    body = f"sweep: {{type: Q8_0, over: {{attention: {axis}, output: {axis}, {four}}}}}\n"
    assert len(recipe(body).quants) == 1024
    with pytest.raises(RecipeError, match="more than 1024"):
        recipe(body + "quants: [{name: A, type: Q8_0}]\n")


def test_long_chains_of_extends(recipe: Make) -> None:
    chain = "".join(f"  - {{name: A{i}, extends: A{i + 1}}}\n" for i in range(254))
    loaded = recipe(f"quants:\n{chain}  - {{name: A254, type: Q8_0}}\n")
    assert loaded.quants[0].ftype == "Q8_0"


def test_expand_without_places(recipe: Make) -> None:
    loaded = recipe("quants: [{name: A, type: Q8_0}]\n")
    (quant,) = expand(loaded.recipe)
    assert quant == loaded.quants[0]
    assert quant.at.file == "<recipe>"


def tried(loaded: LoadedRecipe) -> list[str]:
    return [str(r.named(q.name)) for q in loaded.quants for r in q.candidates]


def test_fewer_experts_and_layers_are_candidates_of_a_quant(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q8_0, experts: [8, 4], prune_layers: [3, [7, 3], []]}\n"
        "  - {name: B, extends: A, prune_layers: []}\n"
        "  - {name: C, extends: A, experts: 6, prune_layers: [[1, 2]]}\n"
        "  - {name: D, type: Q8_0}\n"
    )
    assert tried(loaded) == [
        *("A experts=8 prune_layers=3", "A experts=8 prune_layers=3,7", "A experts=8"),
        *("A experts=4 prune_layers=3", "A experts=4 prune_layers=3,7", "A experts=4"),
        *("B experts=8", "B experts=4", "C experts=6 prune_layers=1,2", "D"),
    ]


def test_a_sweep_crosses_types_with_experts(recipe: Make) -> None:
    loaded = recipe("sweep: {type: Q8_0, over: {output: [q8_0, q6_K]}, experts: [2, 1]}\n")
    assert tried(loaded) == [f"{t} experts={n}" for t in ("q8_0", "q6_K") for n in (2, 1)]
    assert len(loaded.quants) == 2, "quantized once each"


def test_candidates_count_as_quants_do(recipe: Make) -> None:
    layers = ", ".join(map(str, range(64)))
    body = f"quants: [{{name: A, type: Q8_0, experts: [1, 2, 3, 4], prune_layers: [{layers}]}}"
    crowd = ", ".join(f"{{name: B{i}, extends: A}}" for i in range(4))
    assert len(tried(recipe(f"{body}]\n"))) == 256
    with pytest.raises(RecipeError, match=r"with `B3` there are 1280 candidates: more than 1024"):
        recipe(f"{body}, {crowd}]\n")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("experts: [4, 4]", "lists a value twice"),
        ("experts: 0", "must be at least 1"),
        ("prune_layers: [[3, 3]]", "lists a value twice"),
        ("prune_layers: [3, [3]]", "lists a value twice"),
        ("prune_layers: [-1]", "must be at least 0"),
        ("experts: all", "must be a whole number"),
    ],
)
def test_bad_experts_and_layers_are_told(recipe: Make, keys: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(f"quants: [{{name: A, type: Q8_0, {keys}}}]\n")


def test_a_resolved_recipe_says_what_is_tried(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, experts: [2, 1], prune_layers: [[], 0]}]\n"
        "drafts: [{name: f, source: f.gguf, experts: 1}]\n"
    )
    again = parse_recipe(resolved_text(loaded), loaded.path)
    assert tried(again) == tried(loaded)
    assert again.recipe.drafts[0].candidates == loaded.recipe.drafts[0].candidates
