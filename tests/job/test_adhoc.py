"""Recipes from command lines: what is given replaces what the recipe says, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cook.errors import InputError
from cook.job.adhoc import score_recipe
from cook.recipe.load import load_recipe

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "r",
    "drafts": [{"name": "own", "source": "own.gguf"}],
    "score": {
        "target": {"source": "target.gguf", "args": {"threads": 3, "n_gpu_layers": 99}},
        "prompts": "demo",
        "max_tokens": 64,
        "limit": 8,
        "sampling": {"temperature": 0.8, "top_p": 0.9},
        "draft": {"n_max": [2, 4], "p_min": [0.5], "args": {"threads": 2}},
    },
    "pick": {"maximize": "acceptance", "confidence": 0.9},
}


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the files nothing is read, but they must be there."""
    monkeypatch.chdir(tmp_path)
    drafts = ("D.gguf", "a/D-Q4_K_M.gguf", "b/D-Q4_K_M.gguf", "own.gguf", "own-2.gguf")
    for name in ("T.gguf", "source.gguf", *drafts, "folder/r.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = tmp_path / "folder" / "r.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


def test_experts_are_of_the_files_that_are_named(recipe: Path) -> None:
    (draft,) = score_recipe("T.gguf", ["D.gguf"], None, {}, experts=[8, 4]).recipe.drafts
    assert [r.named(draft.name) for r in draft.candidates] == ["D experts=8", "D experts=4"]
    both = score_recipe(None, ["D.gguf"], recipe, {}, experts=[4]).recipe.drafts
    assert [(d.name, d.experts) for d in both] == [("own", ()), ("D", (4,))]


def test_files_alone_make_a_recipe(tmp_path: Path) -> None:
    found = score_recipe("T.gguf", ["a/D-Q4_K_M.gguf", "b/D-Q4_K_M.gguf"], None, {}).recipe
    assert found.score.target.source == tmp_path / "T.gguf"
    assert [(d.name, d.source) for d in found.drafts] == [
        ("D-Q4_K_M", tmp_path / "a/D-Q4_K_M.gguf"),
        ("D-Q4_K_M-2", tmp_path / "b/D-Q4_K_M.gguf"),
    ]
    assert found.pick.maximize == "end_to_end_speed"


def test_options_replace_what_a_recipe_says_key_by_key(recipe: Path) -> None:
    settings = {
        "max_tokens": 32,
        "limit": None,
        "target": {"args": {"cache_type_k": "q8_0"}},
        "sampling": {"temperature": 0.5},
        "draft": {"n_max": [3]},
        "live_budget": {},
    }
    found = score_recipe(str(recipe.parents[1] / "T.gguf"), [], recipe, settings, "decode_speed")
    score, pick = found.recipe.score, found.recipe.pick
    assert score.target.source == recipe.parents[1] / "T.gguf"
    args = score.target.args
    assert (args.threads, args.n_gpu_layers, args.cache_type_k) == (3, 99, "q8_0")
    assert (score.sampling.temperature, score.sampling.top_p) == ((0.5,), (0.9,))
    assert (score.draft.n_max, score.draft.p_min) == ((3,), (0.5,))
    assert score.draft.args.threads == 2
    assert (score.max_tokens, score.prompts, score.limit) == (32, "demo", 8)
    assert (pick.maximize, pick.confidence) == ("decode_speed", 0.9)
    alone = score_recipe("T.gguf", ["D.gguf"], None, settings, "decode_speed").recipe
    assert (alone.score.max_tokens, alone.score.target.args.cache_type_k) == (32, "q8_0")
    assert alone.pick.maximize == "decode_speed"


def test_nothing_given_changes_nothing(recipe: Path) -> None:
    empty: dict[str, Any] = {"limit": None, "target": {"args": {}}, "sampling": {}, "draft": {}}
    assert score_recipe(None, [], recipe, empty).recipe == load_recipe(recipe).recipe


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"max_tokens": 9000}, "leaves no room"),
        ({"draft": {"cache_types": ["q9_9"]}}, "cache_types"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_their_place(
    recipe: Path, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        score_recipe(None, [], recipe, settings)
    assert "with these options: score" in caught.value.message
    with pytest.raises(InputError, match=fault) as caught:
        score_recipe("T.gguf", ["D.gguf"], None, settings)
    assert caught.value.message.startswith("these options: ")


def test_what_is_missing_is_named(recipe: Path) -> None:
    for target, drafts, named in (
        ("T.gguf", [], "no drafts"),
        (None, ["D.gguf"], "no target"),
        ("T.gguf", ["no.gguf"], r"no\.gguf: no such file"),
        ("no.gguf", ["D.gguf"], r"no\.gguf: no such file"),
    ):
        with pytest.raises(InputError, match=named):
            score_recipe(target, drafts, None, {})
    recipe.write_text(yaml.safe_dump({k: v for k, v in RECIPE.items() if k != "score"}))
    with pytest.raises(InputError, match=r"has no score\.target"):
        score_recipe(None, [], recipe, {"target": {"args": {}}, "limit": 3})


def test_no_two_drafts_share_a_name(recipe: Path) -> None:
    files = ["own.gguf", "own-2.gguf", "source.gguf"]
    loaded = score_recipe(None, files, recipe, {})
    assert [d.name for d in loaded.recipe.drafts] == ["own", "own-2", "own-2-2", "source-2"]
