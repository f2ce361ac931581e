"""Every fault of a recipe with its exact place, all at once; a resolved recipe is a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cook.engines.speculation import DEFAULTS
from cook.errors import InputError, RecipeError
from cook.formats.quant_types import Flavour
from cook.recipe.load import find_recipe, load_recipe, parse_recipe, resolved_text, shipped_recipes

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
    rules:
      - attention: iq6_k
      - dense_ffn: iq5_ks
      - shared_experts: iq5_ks
      - routed_experts: iq1_kt
      - embeddings: iq4_k
      - output: iq6_k
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
MINIMAL = "version: 1\nname: x\nmodel: {source: demo://draft-f16.gguf}\n"


def _drafting(said: str) -> str:
    (given,) = (line for line in DESIGN_EXAMPLE.splitlines() if line.startswith("  draft: {"))
    return DESIGN_EXAMPLE.replace(given, f"  draft: {{{said}}}")


def with_score(written: str) -> str:
    return DESIGN_EXAMPLE.replace("prompts: default\n", f"prompts: default\n  {written}\n")


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
    told = [str(p).removeprefix(f"{path}:") for p in caught.value.problems]
    assert told == EXPECTED[name]
    assert caught.value.exit_code == 2


def test_design_example_parses() -> None:
    loaded = parse_recipe(DESIGN_EXAMPLE, Path("/somewhere/ling.yaml"))
    recipe = loaded.recipe
    assert str(recipe.model.source) == "hf://inclusionAI/Ling-flash-2.0@main"
    assert recipe.evaluate.corpus == Path("/somewhere/wiki.test.raw")
    assert recipe.score.target.args.override_tensor == ("exps=CPU",)
    assert recipe.score.target.args.to_model_args().n_gpu_layers == 99
    assert [s.n_max for s in recipe.score.draft.settings("live")] == [2, 4, 8, 16]
    assert [q.name for q in loaded.quants] == ["IQ1_KT", "IQ1_KT-PUFFED"]
    assert loaded.quants[0].ftype == "IQ1_KT"
    assert len(loaded.quants[1].rules) == 10


SAMPLED = MINIMAL + (
    "drafts: [{name: d, source: demo://draft-f16.gguf}]\n"
    "score: {target: {source: demo://target-q8_0.gguf}, sampling: SAMPLING}\n"
)


def test_lists_of_sampling_are_chains_the_first_of_which_is_deployed() -> None:
    text = SAMPLED.replace("SAMPLING", "{temperature: [0.6, 0, 1], top_p: [0.95, 0.8], seed: 3}")
    score = parse_recipe(text, Path("r.yaml")).recipe.score
    assert [one.chain for one in score.sampling.chains] == [
        "temperature 0.6, top_p 0.95",
        "temperature 0.6, top_p 0.8",
        "greedy",
        "temperature 1, top_p 0.95",
        "temperature 1, top_p 0.8",
    ], "greedy is one chain whatever its top_p"
    deployed = score.sampling.to_sampling()
    assert (deployed.temperature, deployed.top_p, deployed.seed) == (0.6, 0.95, 3)
    alone = parse_recipe(SAMPLED.replace("SAMPLING", "{temperature: 0.6}"), Path("r.yaml"))
    assert len(alone.recipe.score.sampling.chains) == 1


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ("{temperature: [0.5, 0.5]}", "lists a value twice"),
        ("{temperature: [0.5, 11]}", "10"),
        ("{top_p: [0.5, 0]}", "must be more than 0"),
        ("{temperature: [.1, .2, .3, .4, .5], min_p: [0, .1, .2, .3]}", "more than 16 sampling"),
        ("{temperature: [0, 1]}, method: live", "forecast by replay"),
        ("{}, batch_width: 2, method: live", "a text that is recorded"),
        ("{}, batch_width: 2, trace: t.trace", "a text that is recorded"),
    ],
)
def test_impossible_sampling_and_recording(sampling: str, told: str) -> None:
    (problem,) = problems_of(SAMPLED.replace("SAMPLING", sampling))
    assert told in problem


def test_a_dumped_recipe_parses_again() -> None:
    from cook.recipe.schema import Recipe

    recipe = parse_recipe(DESIGN_EXAMPLE, Path("/somewhere/ling.yaml")).recipe
    data = json.loads(recipe.model_dump_json())
    data["quants"] = [
        {**q, "rules": [{r["selector"]: r["type"]} for r in q["rules"]]} for q in data["quants"]
    ]
    assert Recipe.model_validate_json(json.dumps(data)) == recipe


@pytest.mark.parametrize(
    ("scalar", "name"),
    [("yes", "yes"), ("no", "no"), ("on", "on"), ("2026-01-01", "2026-01-01"), ("0b1", "0b1")],
)
def test_words_of_old_yaml_are_text(scalar: str, name: str) -> None:
    text = f"version: 1\nname: {scalar}\nmodel: {{source: a.gguf}}\ninclude_source: true\n"
    assert parse_recipe(text, Path("r.yaml")).recipe.name == name


def test_scientific_numbers_are_numbers() -> None:
    text = MINIMAL + "include_source: true\npick: {subject_to: {kld: 1e-3}}\n"
    assert parse_recipe(text, Path("r.yaml")).recipe.pick.subject_to.kld == 1e-3


def test_faults_between_quants_show_beside_faults_in_others() -> None:
    text = MINIMAL + (
        "quants:\n"
        "  - {name: A, type: Q4_K_X}\n"
        "  - {name: B, extends: A}\n"
        "  - {name: C, extends: Z}\n"
    )
    told = problems_of(text)
    assert [t.split(": error: ")[0] for t in told] == ["5:21", "7:24"]
    assert "unknown base type" in told[0]
    assert "names no quant: `Z`" in told[1]


def test_a_fault_in_a_quoted_pattern_points_into_the_quotes() -> None:
    text = MINIMAL + "quants: [{name: A, type: Q8_0, rules: [{'ffn(': q8_0}]}]\n"
    assert problems_of(text)[0].startswith("4:45: error: bad pattern: `(` without `)`")


def test_an_equals_sign_is_explained() -> None:
    text = MINIMAL + "quants: [{name: A, type: Q8_0, rules: ['blk.*=q8_0']}]\n"
    assert "write `selector: type`" in problems_of(text)[0]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ngram-mod", ["ngram-mod"]),
        ("[ngram-mod, {type: ngram-map-k, size_n: 8}]", ["ngram-mod", "ngram-map-k size_n=8"]),
        ("all", [str(one) for one in DEFAULTS[Flavour.IK_LLAMA_CPP]]),
        ("[]", []),
    ],
)
def test_rivals_are_names_or_have_numbers(written: str, said: list[str]) -> None:
    loaded = parse_recipe(with_score(f"rivals: {written}"), Path("/somewhere/r.yaml"))
    again = parse_recipe(resolved_text(loaded), Path("/somewhere/r.yaml"))
    for recipe in (loaded.recipe, again.recipe):
        known = tuple(DEFAULTS[Flavour.IK_LLAMA_CPP])
        found = [one for rival in recipe.score.rivals for one in rival.to_settings(known)]
        assert [str(one) for one in found] == said


@pytest.mark.parametrize(("written", "said"), [("4", (4,)), ("[1, 2, 4]", (1, 2, 4))])
def test_slots_are_one_or_a_list(written: str, said: tuple[int, ...]) -> None:
    loaded = parse_recipe(with_score(f"slots: {written}"), Path("/somewhere/r.yaml"))
    again = parse_recipe(resolved_text(loaded), Path("/somewhere/r.yaml"))
    for recipe in (loaded.recipe, again.recipe):
        assert recipe.score.slots == said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (with_score("slots: [0]"), "slots"),
        (with_score("slots: 33"), "slots"),
        (with_score("slots: [2, 2]"), "lists a value twice"),
        (with_score("slots: 2\n  method: live"), "predicted by replay"),
        (with_score("live: spec-bench"), "live runs always go through llama-server"),
        (with_score("rivals: ngram-modd"), "ngram-mod"),
        (with_score("rivals: [{type: ngram-mod, size_n: 0}]"), "size_n"),
        (with_score("rivals: [{type: ngram-mod, size: 3}]"), "size"),
        (with_score("rivals: [{type: all, size_n: 3}]"), "every engine's own numbers"),
        (with_score("rivals: [suffix, suffix]"), "lists a value twice"),
        (_drafting("context: 300"), "context"),
        (_drafting("context: [512, 512]"), "lists a value twice"),
        (_drafting("context: 16384"), "is more than the target's 8192"),
        (_drafting("context: 256, n_max: 128"), "holds no reply of 128 tokens"),
        (_drafting("after: [ngram-modd]"), "ngram-mod"),
    ],
)
def test_what_score_cannot_be_has_a_place(text: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, Path("r.yaml"))
    assert told in str(caught.value)
    assert "r.yaml:" in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no recipe"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(InputError) as caught:
        find_recipe("ling-flash-iqkt")
    assert caught.value.hint == "did you mean `ling-flash-iq1kt`?"


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text("# " + "x" * (1 << 20))
    with pytest.raises(RecipeError, match="larger than 1 MiB"):
        load_recipe(path)


def test_shipped_by_name_with_or_without_suffix() -> None:
    assert find_recipe("demo") == find_recipe("demo.yaml") == shipped_recipes()["demo"]


def test_sha256_is_of_the_text() -> None:
    one = parse_recipe(DESIGN_EXAMPLE, Path("a.yaml"))
    two = parse_recipe(DESIGN_EXAMPLE + "# more\n", Path("a.yaml"))
    assert len(one.sha256) == 64
    assert one.sha256 != two.sha256


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_resolve_to_themselves(name: str) -> None:
    loaded = load_recipe(name)
    again = parse_recipe(resolved_text(loaded), Path(f"/somewhere/{name}.yaml"))
    assert [(q.name, q.ftype, q.mixture, q.use_imatrix) for q in again.quants] == [
        (q.name, q.ftype, q.mixture, q.use_imatrix) for q in loaded.quants
    ]
    assert [[(r.selector, r.type) for r in q.rules] for q in again.quants] == [
        [(r.selector, r.type) for r in q.rules] for q in loaded.quants
    ]
    ours, theirs = (r.recipe.model_dump(exclude={"quants", "sweep"}) for r in (loaded, again))
    assert ours == theirs


def test_sweeps_and_inheritance_are_written_out() -> None:
    text = """\
version: 1
name: swept
model: {source: model.gguf}
quants:
  - {name: BASE, type: Q4_0, rules: [{attention: q8_0}]}
  - {name: CHILD, extends: BASE, imatrix: false, rules: [{'re:attention': q6_K}]}
sweep:
  extends: BASE
  over: {output: [q4_0, 'q8_0']}
"""
    loaded = parse_recipe(text, Path("/base/swept.yaml"))
    written = resolved_text(loaded)
    assert "extends" not in written
    assert "sweep" not in written
    assert "/base/model.gguf" in written
    again = parse_recipe(written, Path("x.yaml"))
    assert [str(r) for r in again.quants[1].rules] == ["re:attention: q6_K", "attention: q8_0"]
    assert [q.name for q in again.quants] == [q.name for q in loaded.quants]
    assert len(again.quants) == 4


def test_contexts_and_what_drafts_first_are_one_or_a_list() -> None:
    for written, contexts in (("512", (512,)), ("[512, 1024]", (512, 1024))):
        text = _drafting(f"context: {written}, after: [ngram-mod, {{type: suffix, depth: 8}}]")
        score = parse_recipe(text, Path("r.yaml")).recipe.score
        assert score.draft.context == contexts
        assert [rival.type for rival in score.draft.after] == ["ngram-mod", "suffix"]
    short = _drafting("context: 256, n_max: 128").replace("score:\n", "score:\n  method: live\n")
    assert parse_recipe(short, Path("r.yaml")).recipe.score is not None, "live it is measured"
