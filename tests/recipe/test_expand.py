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


def again(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe as it is written out, read again."""
    return parse_recipe(resolved_text(loaded), Path("again.yaml"))


def test_the_childs_rules_go_before_the_parents(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: C, extends: B, rules: [{output: q4_0}]}\n"
        "  - {name: A, type: Q4_K_M, rules: [{attention: q6_K}, {output: q6_K}]}\n"
        "  - {name: B, extends: A, rules: [{attention: q8_0}]}\n"
        "  - {name: D, extends: B, drop_rules: [output], rules: [{mtp: q6_K}]}\n"
    )
    first, *_, last = loaded.quants
    assert (first.name, first.ftype) == ("C", "Q4_K_M")
    assert [(str(r), r.owner, r.at.line) for r in first.rules] == [
        ("output: q4_0", "C", 5),
        ("attention: q8_0", "B", 7),
        ("attention: q6_K", "A", 6),
        ("output: q6_K", "A", 6),
    ]
    assert [str(r) for r in last.rules] == ["mtp: q6_K", "attention: q8_0", "attention: q6_K"]


def test_settings_are_inherited_and_overridden(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q4_0, imatrix: false, mixture: engine, rules: [{output: q8_0}]}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: A, imatrix: true, mixture: pure, type: q5_0}\n"
        "  - {name: D, type: Q4_K_M}\n"
        "  - {name: E, type: Q4_K_M, rules: [{output: q8_0}]}\n"
    )
    found = [(q.ftype, q.use_imatrix, q.mixture, q.mixture_stated) for q in loaded.quants]
    assert found == [
        *[("Q4_0", False, "engine", True)] * 2,
        ("Q5_0", True, "pure", True),
        ("Q4_K_M", True, "engine", False),
        ("Q4_K_M", True, "pure", False),
    ]


def test_a_split_is_inherited_whole_and_overridden(recipe: Make) -> None:
    loaded = recipe(
        "quants:\n"
        "  - {name: A, type: Q4_0, split: {max_size: 45G}}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: A, split: {max_tensors: 128}}\n"
        "  - {name: D, type: Q4_0}\n"
        "sweep: {extends: C, over: {output: [q4_0]}, split: {max_size: 500M}}\n"
    )
    large, few, small = SplitLimit(45 * 10**9), SplitLimit(None, 128), SplitLimit(500 * 10**6)
    for one in (loaded, again(loaded)):
        assert [q.split for q in one.quants] == [large, large, few, None, small]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("split: {}", "`split` has one limit"),
        ("split: {max_size: 1G, max_tensors: 3}", "`split` has one limit"),
        ("split: {max_size: 45GiB}", "max_size"),
        ("split: {max_size: 0G}", "max_size"),
        ("split: {max_tensors: 0}", "max_tensors"),
        ("experts: [4, 4]", "lists a value twice"),
        ("experts: 0", "must be at least 1"),
        ("experts: all", "must be a whole number"),
        ("prune_layers: [[3, 3]]", "lists a value twice"),
        ("prune_layers: [3, [3]]", "lists a value twice"),
        ("prune_layers: [-1]", "must be at least 0"),
    ],
)
def test_settings_that_are_none(recipe: Make, keys: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(f"quants: [{{name: A, type: Q8_0, {keys}}}]\n")


def test_sweep_is_the_grid_in_order(recipe: Make) -> None:
    loaded = recipe(
        "quants: [{name: A, type: Q8_0, rules: [{output: q8_0}]}]\n"
        "sweep:\n"
        "  - name: 's-{attention}-{2}'\n"
        "    extends: A\n"
        "    over: {attention: [q8_0, q6_k], 're:_exps': [q4_k, q2_k]}\n"
        "    rules: [{embeddings: q4_0}]\n"
        "  - over: {type: [q4_0, q4_k_m]}\n"
    )
    assert [(q.name, q.ftype, q.mixture) for q in loaded.quants] == [
        ("A", "Q8_0", "pure"),
        *((f"s-{a}-{b}", "Q8_0", "pure") for a in ("q8_0", "q6_K") for b in ("q4_K", "q2_K")),
        ("Q4_0", "Q4_0", "engine"),
        ("Q4_K_M", "Q4_K_M", "engine"),
    ]
    assert [str(r) for r in loaded.quants[2].rules] == [
        "attention: q8_0",
        "re:_exps: q2_K",
        "embeddings: q4_0",
        "output: q8_0",
    ]
    at = loaded.quants[2].rules[1].at
    assert (at.line, at.column) == (8, 37)


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
        "sweep: {type: Q8_0, over: {output: [q8_0, q6_K]}, experts: [2, 1]}\n"
        "drafts: [{name: f, source: f.gguf, experts: 1}]\n"
    )
    assert tried(loaded) == [
        *("A experts=8 prune_layers=3", "A experts=8 prune_layers=3,7", "A experts=8"),
        *("A experts=4 prune_layers=3", "A experts=4 prune_layers=3,7", "A experts=4"),
        *("B experts=8", "B experts=4", "C experts=6 prune_layers=1,2"),
        *(f"{t} experts={n}" for t in ("q8_0", "q6_K") for n in (2, 1)),
    ]
    assert len(loaded.quants) == 5, "quantized once each"
    assert tried(again(loaded)) == tried(loaded)
    assert again(loaded).recipe.drafts[0].candidates == loaded.recipe.drafts[0].candidates


def test_candidates_count_as_quants_do(recipe: Make) -> None:
    layers = ", ".join(map(str, range(64)))
    body = f"quants: [{{name: A, type: Q8_0, experts: [1, 2, 3, 4], prune_layers: [{layers}]}}"
    crowd = ", ".join(f"{{name: B{i}, extends: A}}" for i in range(4))
    assert len(tried(recipe(f"{body}]\n"))) == 256
    with pytest.raises(RecipeError, match=r"with `B3` there are 1280 candidates: more than 1024"):
        recipe(f"{body}, {crowd}]\n")
