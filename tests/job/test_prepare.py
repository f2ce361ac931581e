"""From a recipe to a layout: engines found, vocabularies compared, nothing run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines.worker.compile import locate, parameter_names
from cook.errors import PrerequisiteError, RecipeError
from cook.job.layout import NO_DRAFT, Layout
from cook.job.prepare import prepare
from cook.steps.deal import DealStep, Dealt
from cook.steps.trace import TraceStep

Writer = Callable[..., Path]

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("bundled")]


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write a recipe with these keys next to the version and name."""

    def write(**keys: Any) -> Path:
        path = tmp_path / "r.yaml"
        path.write_text(json.dumps({"version": 1, "name": "r", **keys}))
        return path

    return write


def score(**more: Any) -> dict[str, Any]:
    target = {"source": "demo://target-q8_0.gguf"}
    return {"target": target, "prompts": "demo", "limit": 8, "draft": {"n_max": [2, 4]}, **more}


SOURCE = {"source": "demo://draft-f16.gguf"}
READY = {"name": "a", **SOURCE}
Q8_0 = {"name": "A", "type": "Q8_0"}


def test_every_draft_meets_every_setting_one_setting_at_a_time(recipe: Writer) -> None:
    path = recipe(
        model=SOURCE,
        include_source=True,
        quants=[Q8_0, {"name": "B", "type": "Q4_K_M"}],
        score=score(),
    )
    (layout,) = prepare(path).layouts
    assert layout.baseline.name == NO_DRAFT
    assert [c.name for c in layout.grid] == [
        *("A n_max=2", "B n_max=2", "source n_max=2"),
        *("A n_max=4", "B n_max=4", "source n_max=4"),
    ]
    mixed = layout.drafts[1]
    assert mixed.predicted_tensor_bytes is not None, "the engine's own mixture"
    assert mixed.type_counts["q4_K"] > mixed.type_counts["q6_K"] > 0


def test_a_build_fetches_no_target_for_a_recipe_that_its_source_shows_to_be_wrong(
    recipe: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cook.job.locate.listing", None)
    quant = {"name": "A", "type": "Q8_0", "rules": [{"attn_q": "q8_K"}]}
    target = {"source": "hf://some/model"}
    path = recipe(model=SOURCE, quants=[quant], score=score(target=target))
    with pytest.raises(RecipeError, match="no type of stored weights"):
        prepare(path)


def test_what_is_traced_is_what_servers_are_asked(recipe: Writer) -> None:
    path = recipe(model=SOURCE, quants=[Q8_0], score=score(method="replay"))
    (layout,) = prepare(path).layouts
    trace, asked = layout.forecast.trace, layout.baseline.live.prompts
    assert isinstance(trace, TraceStep)
    assert {p.id for p in asked} == {p.id for p in trace.prompts}
    assert len(asked) == 8
    assert [p.half for p in asked].count("pick") == 4, "the floor's and a search's half"


def test_gpu_drafts_against_a_baseline_that_leaves_the_gpu_idle_are_warned_of(
    recipe: Writer,
) -> None:
    draft = {"n_max": 2, "args": {"n_gpu_layers": 99}}
    path = recipe(model=SOURCE, quants=[Q8_0], score=score(draft=draft))
    assert any("score.baseline" in w for w in prepare(path).layouts[0].warnings)


def flagged(*flags: str) -> dict[str, Any]:
    return {"source": "demo://target-q8_0.gguf", "args": {"extra": flags}}


def test_flags_that_replay_cannot_follow_are_named_before_anything_runs(recipe: Writer) -> None:
    path = recipe(drafts=[READY], score=score(target=flagged("--poll", "0")))
    with pytest.raises(PrerequisiteError, match="target: replay and timing cannot follow `--poll`"):
        prepare(path)
    path = recipe(drafts=[READY], score=score(target=flagged("--poll", "0"), method="live"))
    assert prepare(path).layouts[0].grid


def test_flags_of_the_server_alone_are_named_and_others_reach_every_step(recipe: Writer) -> None:
    flags = ("--no-warmup", "--rope-freq-base", "9000")
    prepared = prepare(recipe(drafts=[READY], score=score(target=flagged(*flags))))
    why = "`--no-warmup`: the server's alone; replay and timings go without"
    assert [w for w in prepared.warnings if why in w] == [f"target: {why}", f"draft: {why}"]
    forecast = prepared.layouts[0].forecast
    assert isinstance(forecast.trace, TraceStep)
    given = [forecast.trace.args, forecast.drafts[0].replay.args]
    for args in (*given, *(curve.args for curve in forecast.curves())):
        assert args.extra == flags


def test_the_longest_prompt_is_held_against_what_ends_the_server(
    recipe: Writer, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(type(bundled), "check_prompts", lambda _, job, n: seen.append((job, n)))
    prepared = prepare(recipe(drafts=[READY], score=score(context=4096, max_tokens=3000)))
    longest = max(len(p.text.encode()) for c in prepared.layouts[0].grid for p in c.live.prompts)
    assert longest + 1024 > 1096  # so that what is left of the context decides
    assert {(job.context, n) for job, n in seen} == {(4096, 1096)}
    assert {job.draft is None for job, _ in seen} == {True, False}


def test_memory_is_that_of_a_draft_next_to_its_target(recipe: Writer) -> None:
    args = {"flash_attention": False, "ubatch": 128, "cache_type_k": "q8_0"}
    target = {"source": "demo://target-q8_0.gguf", "args": args}
    memory = prepare(recipe(drafts=[READY], score=score(target=target))).layouts[0].drafts[0].memory
    assert (memory.args.flash_attention, memory.args.ubatch) == (False, 128)
    assert memory.args.cache_type_k == "f16"


def test_a_flag_that_this_version_s_library_has_not_is_named_before_anything_runs(
    recipe: Writer, bundled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = parameter_names(locate(bundled)) - {"model.load_mode"}
    monkeypatch.setattr("cook.job.prepare.parameter_names", lambda _: older)
    with pytest.raises(PrerequisiteError, match=r"`-lm`: this engine's library has no model\.load"):
        prepare(recipe(drafts=[READY], score=score(target=flagged("-lm", "none"))))


def test_fewer_experts_are_drafts_that_share_a_quant(recipe: Writer) -> None:
    path = recipe(
        model=SOURCE,
        quants=[{"name": "A", "type": "Q8_0", "experts": [2, 1], "prune_layers": [[], 1]}],
        drafts=[{"name": "f", "source": "demo://target-q8_0.gguf", "experts": [6, 3]}],
        score=score(draft={"n_max": 4, "cache_types": ["f16", "q8_0/q5_1"]}),
    )
    (layout,) = prepare(path).layouts
    drafts = {draft.name: draft for draft in layout.drafts}
    assert list(drafts) == [
        *("A experts=2", "A experts=2 prune_layers=1"),
        *("A experts=1", "A experts=1 prune_layers=1"),
        *("f experts=6", "f experts=3"),
    ]
    whole, fewer = drafts["A experts=2"], drafts["A experts=1"]
    assert whole.model is whole.quantize, "a token uses two anyway"
    assert len({draft.quantize for draft in layout.drafts}) == 2, "one quant, and none"
    assert [step.kind for step in layout.making()].count("reduce") == 4
    assert fewer.active.read_bytes < whole.active.read_bytes
    assert fewer.predicted_tensor_bytes == whole.predicted_tensor_bytes
    pruned = drafts["A experts=2 prune_layers=1"]
    assert (pruned.elements or 0) < (whole.elements or 0)
    forecasts = {(d.draft.name, d.cache_type): d for d in layout.forecast.drafts}
    args = forecasts["A experts=1", "q8_0/q5_1"].replay.args
    assert (args.cache_type_k, args.cache_type_v) == ("q8_0", "q5_1")


def test_the_demo_tries_what_its_model_has(recipe: Writer) -> None:
    path = recipe(
        model=SOURCE,
        quants=[{"name": "A", "type": "Q8_0", "experts": [8, 4, 1], "prune_layers": [[], 20]}],
        score=score(),
    )
    prepared = prepare(path, demo=True)
    assert [d.name for d in prepared.layouts[0].drafts] == ["A experts=1"]
    (warning,) = [w for w in prepared.warnings if "not tried" in w]
    assert "A experts=8" in warning


def test_output_heads_of_a_ready_draft_are_drafts_of_their_own(recipe: Writer) -> None:
    heads = {"output": ["f16", "q6_K"], "experts": [2, 1]}
    path = recipe(drafts=[{**READY, **heads}], score=score())
    (layout,) = prepare(path).layouts
    drafts = {draft.name: draft for draft in layout.drafts}
    assert list(drafts) == [
        *("a output=f16 experts=2", "a output=f16 experts=1"),
        *("a output=q6_K experts=2", "a output=q6_K experts=1"),
    ]
    kinds = [step.kind for step in layout.making()]
    assert (kinds.count("head"), kinds.count("reduce"), kinds.count("quantize")) == (1, 2, 0)
    whole, small = drafts["a output=f16 experts=2"], drafts["a output=q6_K experts=2"]
    assert whole.making_step is None, "the file as it is"
    assert small.output == "q6_K"
    assert small.active.read_bytes < whole.active.read_bytes
    assert small.elements == whole.elements
    assert small.type_counts["q6_K"] == 1
    fewer = drafts["a output=q6_K experts=1"].making_step
    assert fewer.inputs()["model"] is small.model, "made of the file with that head"


def test_a_head_that_a_draft_cannot_have_is_refused_at_its_place(recipe: Writer) -> None:
    path = recipe(drafts=[{**READY, "output": ["q8_0", "iq2_xs"]}])
    with pytest.raises(RecipeError) as refused:
        prepare(path)
    (problem,) = refused.value.problems
    assert "a: iq2_xs needs importance data" in problem.message
    assert problem.column == path.read_text().index('"iq2_xs"') + 1
    with pytest.raises(PrerequisiteError, match=r"has no iq4_ks; ik_llama\.cpp has it"):
        prepare(recipe(drafts=[{**READY, "output": "iq4_ks"}]))


@pytest.mark.ik
def test_a_head_that_one_engine_cannot_make_is_left_out_there(
    recipe: Writer, ik_engine: Any
) -> None:
    path = recipe(drafts=[{**READY, "output": ["q8_0", "iq4_ks"]}])
    ik = f"ik={Path(ik_engine.facts.bin_dir).parent}"
    ours, theirs = prepare(path, engines=["bundled", ik]).layouts
    assert [d.name for d in ours.drafts] == ["a output=q8_0@bundled"]
    assert [d.name for d in theirs.drafts] == ["a output=q8_0@ik", "a output=iq4_ks@ik"]
    (left,) = ours.left_out
    assert left.candidate == "a output=iq4_ks@bundled"
    assert "has no iq4_ks" in left.reason


def require_shared(layout: Layout) -> None:
    """Nothing is replayed or timed twice."""
    for steps in zip(*((d.replay, d.curve) for d in layout.forecast.drafts), strict=True):
        assert len({step.key for step in steps}) == 1


@pytest.mark.ik
def test_contexts_of_a_draft_s_own_are_drafts_of_one_file(recipe: Writer, ik_engine: Any) -> None:
    path = recipe(
        drafts=[READY],
        score=score(max_tokens=64, draft={"n_max": 4, "context": [512, 1024]}),
    )
    ours = prepare(path).layouts[0]
    assert [d.name for d in ours.drafts] == ["a"]
    assert any("`context` is of ik" in w and "changes nothing here" in w for w in ours.warnings)
    theirs = prepare(path, engines=[f"ik={Path(ik_engine.facts.bin_dir).parent}"]).layouts[0]
    assert [d.name for d in theirs.drafts] == ["a context=512", "a context=1024"]
    short, long = theirs.drafts
    assert short.model.key == long.model.key
    assert short.memory.context == 512
    require_shared(theirs)
    live = {c.name: c.live for c in theirs.grid}
    assert live["a context=512 n_max=4"].draft_context == 512
    assert live["a context=512 n_max=4"].key != live["a context=1024 n_max=4"].key


def test_a_draft_behind_n_grams_is_a_candidate_next_to_the_draft_alone(recipe: Writer) -> None:
    draft = {"n_max": [2, 4], "after": ["ngram-mod", {"type": "ngram-map-k", "size_m": 12}]}
    path = recipe(drafts=[READY], score=score(draft=draft))
    (layout,) = prepare(path).layouts
    names = ["a", "a after ngram-mod", "a after ngram-map-k size_m=12"]
    alone, behind, _ = layout.drafts
    assert [d.name for d in layout.drafts] == names
    assert alone.model is behind.model
    assert {step.key for step in alone.making()} == {step.key for step in behind.making()}
    require_shared(layout)
    assert max(layout.forecast.verify.widths) > 12
    found = {c.name: c for c in layout.grid}
    both = found["a after ngram-mod n_max=4"]
    assert both.key.is_file
    assert both.live.ngram == both.key.ngram is not None
    assert both.live.settings == both.key.settings
    assert len({c.key for c in layout.grid}) == len(layout.grid) == 6
    deal = DealStep(tuple(c.live for c in layout.grid), 0, True)
    dealt = {c.name: Dealt((deal,), c.name) for c in layout.grid}
    checked = [c.name for c in layout.grid if layout.checks(c, dealt[c.name], None).counts]
    assert checked == ["a n_max=2", "a n_max=4"], "n-grams are counted without a worker"
