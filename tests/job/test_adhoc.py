"""Recipes from command lines: what is given replaces what the recipe says, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cook.errors import InputError
from cook.job.adhoc import score_recipe
from cook.recipe.load import LoadedRecipe
from cook.recipe.schema import ScoreSpec

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "r",
    "drafts": [{"name": "own", "source": "own.gguf"}],
    "score": {
        "target": {"source": "target.gguf", "args": {"threads": 3, "n_gpu_layers": 99}},
        "prompts": "demo",
        "max_tokens": 64,
        "sampling": {"temperature": 0.8, "top_p": 0.9},
        "draft": {"n_max": [2, 4], "p_min": [0.5], "args": {"threads": 2}},
    },
    "pick": {"maximize": "acceptance", "confidence": 0.9},
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads them, but they must be there."""
    monkeypatch.chdir(tmp_path)
    drafts = ("D.gguf", "a/D-Q4_K_M.gguf", "b/D-Q4_K_M.gguf", "own.gguf", "own-2.gguf")
    for name in ("T.gguf", "more.gguf", "source.gguf", *drafts):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "r.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(RECIPE))
    return path


def score_of(loaded: LoadedRecipe) -> ScoreSpec:
    assert loaded.recipe.score is not None
    return loaded.recipe.score


def test_experts_are_of_the_files_that_are_named(recipe: Path) -> None:
    loaded = score_recipe("T.gguf", ["D.gguf"], None, {}, experts=[8, 4])
    (draft,) = loaded.recipe.drafts
    assert [r.named(draft.name) for r in draft.candidates] == ["D experts=8", "D experts=4"]
    both = score_recipe(None, ["D.gguf"], recipe, {}, experts=[4]).recipe.drafts
    assert [(d.name, d.experts) for d in both] == [("own", ()), ("D", (4,))]


def test_files_alone_make_a_recipe(tmp_path: Path) -> None:
    loaded = score_recipe("T.gguf", ["a/D-Q4_K_M.gguf", "b/D-Q4_K_M.gguf"], None, {})
    assert score_of(loaded).target.source == tmp_path / "T.gguf"
    drafts = loaded.recipe.drafts
    assert [d.name for d in drafts] == ["D-Q4_K_M", "D-Q4_K_M-2"]
    assert [d.source for d in drafts] == [tmp_path / f"{f}/D-Q4_K_M.gguf" for f in "ab"]
    assert loaded.recipe.pick.maximize == "end_to_end_speed"


def test_options_are_in_the_recipe_they_make() -> None:
    settings = {
        "max_tokens": 32,
        "method": "live",
        "limit": None,
        "target": {"args": {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}},
        "sampling": {"temperature": 0.5, "seed": 7},
        "draft": {"n_max": [3], "p_min": [0.0, 0.4], "cache_types": ["f16", "q8_0"]},
        "live_budget": {},
    }
    loaded = score_recipe("T.gguf", ["D.gguf"], None, settings, "decode_speed")
    score = score_of(loaded)
    assert (score.max_tokens, score.method, score.limit) == (32, "live", None)
    assert score.target.args.cache_type_k == "q8_0"
    assert (score.sampling.temperature, score.sampling.seed) == ((0.5,), 7)
    assert score.draft.p_min == (0.0, 0.4)
    assert score.draft.cache_types == ("f16", "q8_0")
    assert loaded.recipe.pick.maximize == "decode_speed"


def test_over_a_recipe_maps_are_merged_key_by_key(recipe: Path) -> None:
    settings = {
        "max_tokens": 32,
        "target": {"args": {"cache_type_k": "q8_0"}},
        "sampling": {"temperature": 0.5},
        "draft": {"n_max": [3]},
    }
    loaded = score_recipe(None, [], recipe, settings, "decode_speed")
    score = score_of(loaded)
    assert score.target.source == recipe.parent / "target.gguf"
    args = score.target.args
    assert (args.threads, args.n_gpu_layers, args.cache_type_k) == (3, 99, "q8_0")
    assert (score.sampling.temperature, score.sampling.top_p) == ((0.5,), (0.9,))
    assert (score.draft.n_max, score.draft.p_min) == ((3,), (0.5,))
    assert score.draft.args.threads == 2
    assert (score.max_tokens, score.prompts) == (32, "demo")
    assert (loaded.recipe.pick.maximize, loaded.recipe.pick.confidence) == ("decode_speed", 0.9)


def test_nothing_given_changes_nothing(recipe: Path) -> None:
    from cook.recipe.load import load_recipe

    empty: dict[str, Any] = {"limit": None, "target": {"args": {}}, "sampling": {}, "draft": {}}
    assert score_recipe(None, [], recipe, empty).recipe == load_recipe(recipe).recipe


def test_named_drafts_join_those_of_the_recipe(recipe: Path, tmp_path: Path) -> None:
    loaded = score_recipe(str(tmp_path / "T.gguf"), [str(tmp_path / "more.gguf")], recipe, {})
    assert [d.name for d in loaded.recipe.drafts] == ["own", "more"]
    assert score_of(loaded).target.source == tmp_path / "T.gguf"
    assert score_of(loaded).target.args.threads == 3


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_tokens": 9000}, "leaves no room"),
        ({"draft": {"n_max": [4, 4]}}, "twice"),
        ({"draft": {"cache_types": ["q9_9"]}}, "cache_types"),
    ],
)
def test_options_that_do_not_fit_are_told_with_their_place(
    recipe: Path, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told) as caught:
        score_recipe(None, [], recipe, settings)
    assert "with these options: score" in caught.value.message
    with pytest.raises(InputError, match=told) as caught:
        score_recipe("T.gguf", ["D.gguf"], None, settings)
    assert caught.value.message.startswith("these options: ")


def test_a_recipe_without_a_target_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in RECIPE.items() if k != "score"}))
    with pytest.raises(InputError, match=r"has no score\.target"):
        score_recipe(None, [], path, {"target": {"args": {}}, "limit": 3})


def test_nothing_to_score_and_nothing_to_score_against() -> None:
    with pytest.raises(InputError, match="no drafts"):
        score_recipe("T.gguf", [], None, {})
    with pytest.raises(InputError, match="no target"):
        score_recipe(None, ["D.gguf"], None, {})


def test_no_two_drafts_share_a_name(recipe: Path) -> None:
    files = ["own.gguf", "own-2.gguf", "source.gguf"]
    loaded = score_recipe(None, files, recipe, {})
    assert [d.name for d in loaded.recipe.drafts] == ["own", "own-2", "own-2-2", "source-2"]


@pytest.mark.parametrize(("target", "draft"), [("T.gguf", "no.gguf"), ("no.gguf", "D.gguf")])
def test_a_file_that_is_not_there(target: str, draft: str) -> None:
    with pytest.raises(InputError, match=r"no\.gguf: no such file"):
        score_recipe(target, [draft], None, {})
