"""Every fault of a recipe with its exact place, all at once; a resolved recipe is a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cook.engines.base import ModelArgs
from cook.engines.speculation import DEFAULTS
from cook.errors import InputError, RecipeError
from cook.formats.quant_types import Flavour
from cook.recipe.load import (
    LoadedRecipe,
    find_recipe,
    load_recipe,
    parse_recipe,
    resolved_text,
    shipped_recipes,
)
from cook.recipe.rules import Quant
from cook.recipe.schema import BaselineSpec, DraftSpec, ModelArgsSpec, Recipe, TargetSpec
from tests.recipe.conftest import HEAD

BROKEN = Path(__file__).parents[1] / "data" / "broken_recipes"
EXPECTED: dict[str, list[str]] = json.loads((BROKEN / "expected.json").read_text("utf-8"))

DESIGN_EXAMPLE = """\
version: 1
name: ling-flash-iq1kt
engine: ik_llama.cpp
model:
  source: hf://inclusionAI/Ling-flash-2.0@main     # or a BF16 GGUF
imatrix:
  corpus: imatrix/calibration-v1.txt
  context: 512
  coverage: {experts: 0.95, otherwise: extend}
evaluate: {corpus: wiki.test.raw, context: 512, divergence: true, chunks: 100}
quants:
  - name: IQ1_KT
    type: iq1_kt
    rules: [{attention: iq6_k}, {dense_ffn: iq5_ks}, {shared_experts: iq5_ks}, {output: iq6_k},
      {routed_experts: iq1_kt}, {embeddings: iq4_k}]
  - name: IQ1_KT-PUFFED
    extends: IQ1_KT
    rules: [{attention: q8_0}, {dense_ffn: q8_0}, {shared_experts: q8_0}, {embeddings: q8_0}]
score:
  target:
    source: 'hf://ubergarm/Ling-1T-GGUF/smol-IQ4_KSS'
    args: {override_tensor: 'exps=CPU', n_gpu_layers: 99}
  baseline: {args: {n_gpu_layers: 99}}
  prompts: default
  sampling: {temperature: 0}
  draft: {n_max: [2, 4, 8, 16], p_min: [0.0], cache_types: [f16, q8_0], args: {n_gpu_layers: 99}}
  live_budget: {minutes: 30}
pick: {maximize: end_to_end_speed, confidence: 0.95, subject_to: {size_gib: 24, memory_gib: 48}}
"""


def drafting(keys: str) -> str:
    (given,) = (line for line in DESIGN_EXAMPLE.splitlines() if line.startswith("  draft: {"))
    return DESIGN_EXAMPLE.replace(given, f"  draft: {{{keys}}}")


def scoring(keys: str) -> str:
    return DESIGN_EXAMPLE.replace("prompts: default\n", f"prompts: default\n  {keys}\n")


def sampling(keys: str) -> str:
    return HEAD + (
        "drafts: [{name: d, source: demo://draft-f16.gguf}]\n"
        f"score: {{target: {{source: demo://target-q8_0.gguf}}, sampling: {keys}}}\n"
    )


def read(text: str) -> LoadedRecipe:
    return parse_recipe(text, Path("/somewhere/r.yaml"))


def problems_of(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, Path("r.yaml"))
    return [str(p).removeprefix("r.yaml:") for p in caught.value.problems]


def test_every_broken_recipe_is_expected() -> None:
    assert sorted(p.name for p in BROKEN.glob("*.yaml")) == sorted(EXPECTED)
    assert len(EXPECTED) >= 40


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_broken_recipe(name: str) -> None:
    path = BROKEN / name
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert [str(p).removeprefix(f"{path}:") for p in caught.value.problems] == EXPECTED[name]
    assert caught.value.exit_code == 2


def test_design_example_parses() -> None:
    loaded = read(DESIGN_EXAMPLE)
    recipe = loaded.recipe
    assert str(recipe.model.source) == "hf://inclusionAI/Ling-flash-2.0@main"
    assert recipe.evaluate.corpus == Path("/somewhere/wiki.test.raw")
    assert recipe.score.target.args.override_tensor == ("exps=CPU",)
    assert recipe.score.target.args.to_model_args().n_gpu_layers == 99
    assert [s.n_max for s in recipe.score.draft.settings("live")] == [2, 4, 8, 16]
    assert [q.name for q in loaded.quants] == ["IQ1_KT", "IQ1_KT-PUFFED"]
    assert loaded.quants[0].ftype == "IQ1_KT"
    assert len(loaded.quants[1].rules) == 10


def test_lists_of_sampling_are_chains_the_first_of_which_is_deployed() -> None:
    score = read(sampling("{temperature: [0.6, 0, 1], top_p: [0.95, 0.8], seed: 3}")).recipe.score
    assert [one.chain for one in score.sampling.chains] == [
        "temperature 0.6, top_p 0.95",
        "temperature 0.6, top_p 0.8",
        "greedy",
        "temperature 1, top_p 0.95",
        "temperature 1, top_p 0.8",
    ], "greedy is one chain whatever its top_p"
    deployed = score.sampling.to_sampling()
    assert (deployed.temperature, deployed.top_p, deployed.seed) == (0.6, 0.95, 3)


def test_a_dumped_recipe_parses_again() -> None:
    recipe = read(DESIGN_EXAMPLE).recipe
    data = json.loads(recipe.model_dump_json())
    for quant in data["quants"]:
        quant["rules"] = [{rule["selector"]: rule["type"]} for rule in quant["rules"]]
    assert Recipe.model_validate_json(json.dumps(data)) == recipe


def test_scalars_are_those_of_yaml_1_2() -> None:
    recipe = read(
        "version: 1\nname: no\nmodel: {source: a.gguf}\n"
        "include_source: true\npick: {subject_to: {kld: 1e-3}}\n"
    ).recipe
    assert recipe.name == "no"
    assert recipe.pick.subject_to.kld == 1e-3


def test_faults_between_quants_show_beside_faults_in_others() -> None:
    first, second = problems_of(
        f"{HEAD}quants:\n"
        "  - {name: A, type: Q4_K_X}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: Z}\n"
    )
    assert first.startswith("5:21: error: unknown base type")
    assert second.startswith("7:24: error: `extends` names no quant: `Z`")


def test_a_fault_in_a_quoted_pattern_points_into_the_quotes() -> None:
    (problem,) = problems_of(HEAD + "quants: [{name: A, type: Q8_0, rules: [{'ffn(': q8_0}]}]\n")
    assert problem.startswith("4:45: error: bad pattern: `(` without `)`")


def rivals(recipe: Recipe) -> list[str]:
    known = tuple(DEFAULTS[Flavour.IK_LLAMA_CPP])
    return [str(one) for rival in recipe.score.rivals for one in rival.to_settings(known)]


def after(recipe: Recipe) -> list[str]:
    return [rival.type for rival in recipe.score.draft.after]


@pytest.mark.parametrize(
    ("text", "part", "value"),
    [
        (scoring("rivals: ngram-mod"), rivals, ["ngram-mod"]),
        (
            scoring("rivals: [ngram-mod, {type: ngram-map-k, size_n: 8}]"),
            rivals,
            ["ngram-mod", "ngram-map-k size_n=8"],
        ),
        (scoring("rivals: all"), rivals, [str(one) for one in DEFAULTS[Flavour.IK_LLAMA_CPP]]),
        (scoring("rivals: []"), rivals, []),
        (scoring("slots: 4"), lambda recipe: recipe.score.slots, (4,)),
        (scoring("slots: [1, 2, 4]"), lambda recipe: recipe.score.slots, (1, 2, 4)),
        (
            DESIGN_EXAMPLE.replace("chunks: 100}", "chunks: null}"),
            lambda recipe: recipe.evaluate.chunks,
            None,
        ),
        (
            drafting("args: {cache_type_k: q8_0}"),
            lambda recipe: recipe.score.draft.args.cache_type_k,
            "q8_0",
        ),
        (drafting("context: 512"), lambda recipe: recipe.score.draft.context, (512,)),
        (drafting("context: [512, 768]"), lambda recipe: recipe.score.draft.context, (512, 768)),
        (drafting("after: [ngram-mod, {type: suffix, depth: 8}]"), after, ["ngram-mod", "suffix"]),
    ],
)
def test_what_is_one_or_a_list_is_written_out_and_read_again(
    text: str, part: Callable[[Recipe], object], value: object
) -> None:
    loaded = read(text)
    assert part(loaded.recipe) == part(read(resolved_text(loaded)).recipe) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sampling("{temperature: [0.5, 0.5]}"), "lists a value twice"),
        (sampling("{temperature: [0.5, 11]}"), "10"),
        (sampling("{top_p: [0.5, 0]}"), "must be more than 0"),
        (sampling("{temperature: [.1, .2, .3, .4, .5], min_p: [0, .1, .2, .3]}"), "more than 16 s"),
        (sampling("{temperature: [0, 1]}, method: live"), "forecast by replay"),
        (sampling("{}, batch_width: 2, method: live"), "a text that is recorded"),
        (sampling("{}, batch_width: 2, trace: t.trace"), "a text that is recorded"),
        (scoring("slots: [0]"), "slots"),
        (scoring("slots: 33"), "slots"),
        (scoring("slots: [2, 2]"), "lists a value twice"),
        (scoring("slots: 2\n  method: live"), "predicted by replay"),
        (scoring("live: spec-bench"), "live runs always go through llama-server"),
        (scoring("rivals: ngram-modd"), "ngram-mod"),
        (scoring("rivals: [{type: ngram-mod, size_n: 0}]"), "size_n"),
        (scoring("rivals: [{type: ngram-mod, size: 3}]"), "size"),
        (scoring("rivals: [{type: all, size_n: 3}]"), "every engine's own numbers"),
        (scoring("rivals: [suffix, suffix]"), "lists a value twice"),
        (drafting("context: 300"), "context"),
        (drafting("context: [512, 512]"), "lists a value twice"),
        (drafting("context: 16384"), "is more than the target's 8192"),
        (drafting("context: 256, n_max: 128"), "holds no reply of 128 tokens"),
        (drafting("after: [ngram-modd]"), "ngram-mod"),
    ],
)
def test_what_score_cannot_be_has_a_place(text: str, message: str) -> None:
    (problem,) = problems_of(text)
    assert message in problem


def test_live_a_short_context_is_measured() -> None:
    short = drafting("context: 256, n_max: 128").replace("score:\n", "score:\n  method: live\n")
    assert read(short).recipe.score.draft.context == (256,)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recipe"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(InputError) as caught:
        find_recipe("ling-flash-iqkt")
    assert caught.value.hint == "did you mean `ling-flash-iq1kt`?"
    (tmp_path / "big.yaml").write_text("# " + "x" * (1 << 20))
    with pytest.raises(RecipeError, match="larger than 1 MiB"):
        load_recipe(tmp_path / "big.yaml")


def test_shipped_by_name_with_or_without_suffix() -> None:
    assert find_recipe("demo") == find_recipe("demo.yaml") == shipped_recipes()["demo"]


def test_sha256_is_of_the_text() -> None:
    one, two = read(DESIGN_EXAMPLE), read(DESIGN_EXAMPLE + "# more\n")
    assert len(one.sha256) == 64
    assert one.sha256 != two.sha256


def plain(quant: Quant) -> Quant:
    """Without what is of the recipe's form: where rules come from, and what is left to say."""
    rules = tuple(replace(rule, owner="") for rule in quant.rules)
    return replace(quant, mixture_stated=True, rules=rules)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_resolve_to_themselves(name: str) -> None:
    loaded = load_recipe(name)
    again = parse_recipe(resolved_text(loaded), Path(f"/somewhere/{name}.yaml"))
    ours, theirs = (
        ([plain(q) for q in one.quants], one.recipe.model_dump(exclude={"quants", "sweep"}))
        for one in (loaded, again)
    )
    assert ours == theirs


def test_sweeps_and_inheritance_are_written_out() -> None:
    loaded = read(
        "version: 1\nname: swept\nmodel: {source: model.gguf}\n"
        "quants:\n"
        "  - {name: BASE, type: Q4_0, rules: [{attention: q8_0}]}\n"
        "  - {name: CHILD, extends: BASE, imatrix: false, rules: [{'re:attention': q6_K}]}\n"
        "sweep: {extends: BASE, over: {output: [q4_0, 'q8_0']}}\n"
    )
    written = resolved_text(loaded)
    assert "extends" not in written
    assert "sweep" not in written
    assert "/somewhere/model.gguf" in written
    again = parse_recipe(written, Path("x.yaml"))
    assert [str(r) for r in again.quants[1].rules] == ["re:attention: q6_K", "attention: q8_0"]
    assert [q.name for q in again.quants] == [q.name for q in loaded.quants]
    assert len(again.quants) == 4


def test_everything_that_an_engine_takes_can_be_said() -> None:
    assert set(ModelArgsSpec.model_fields) == {f.name for f in fields(ModelArgs)}
    for part in (TargetSpec, DraftSpec, BaselineSpec):
        assert part.model_fields["args"].annotation is ModelArgsSpec
