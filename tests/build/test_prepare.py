"""From a recipe to a menu: engines found, vocabularies compared, nothing run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.build.layout import NO_DRAFT
from cook.build.prepare import Prepared, prepare
from cook.errors import InputError, PrerequisiteError, RecipeError
from cook.formats.imatrix_file import Imatrix, ImatrixEntry, write_gguf
from cook.steps.trace import TraceStep

pytestmark = pytest.mark.engine


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write a recipe with these keys beside the version and name."""

    def write(**keys: Any) -> Path:
        path = tmp_path / "r.yaml"
        path.write_text(json.dumps({"version": 1, "name": "r", **keys}))
        return path

    return write


def score(**more: Any) -> dict[str, Any]:
    target = {"source": "demo://target-q8_0.gguf"}
    return {"target": target, "prompts": "demo", "limit": 8, "draft": {"n_max": [2, 4]}, **more}


SOURCE = {"source": "demo://draft-f16.gguf"}


def names(prepared: Prepared) -> list[str]:
    return [c.name for c in prepared.menus[0].grid]


def test_every_draft_meets_every_setting_one_setting_at_a_time(
    recipe: Callable[..., Path], bundled: Any
) -> None:
    path = recipe(
        model=SOURCE,
        include_source=True,
        quants=[{"name": "A", "type": "Q8_0"}, {"name": "B", "type": "Q4_0"}],
        score=score(),
    )
    prepared = prepare(path)
    assert prepared.menus[0].baseline is not None
    assert prepared.menus[0].baseline.name == NO_DRAFT
    assert names(prepared) == [
        *("A n_max=2", "B n_max=2", "source n_max=2"),
        *("A n_max=4", "B n_max=4", "source n_max=4"),
    ]


def test_sizes_of_the_engines_own_mixtures_are_known_beforehand(
    recipe: Callable[..., Path], bundled: Any
) -> None:
    path = recipe(model=SOURCE, quants=[{"name": "A", "type": "Q4_K_M"}])
    draft = prepare(path).menus[0].drafts[0]
    assert draft.predicted_tensor_bytes is not None
    assert draft.type_counts["q6_K"] > 0
    assert draft.type_counts["q4_K"] > draft.type_counts["q6_K"]


def test_a_draft_of_another_vocabulary_is_refused_with_the_tokens(
    recipe: Callable[..., Path], tmp_path: Path, bundled: Any, tiny_draft: Path
) -> None:
    path = recipe(drafts=[{"name": "other", "source": str(tiny_draft)}], score=score())
    with pytest.raises(InputError, match=r"cannot draft for .*target-q8_0\.gguf"):
        prepare(path)


def test_replay_splits_the_prompts_in_halves(recipe: Callable[..., Path], bundled: Any) -> None:
    path = recipe(
        model=SOURCE, quants=[{"name": "A", "type": "Q8_0"}], score=score(method="replay")
    )
    menu = prepare(path).menus[0]
    assert menu.forecast is not None
    assert menu.baseline is not None
    assert isinstance(menu.forecast.trace, TraceStep)
    traced = {p.id for p in menu.forecast.trace.prompts}
    live = {p.id for step in menu.baseline.rounds for p in step.prompts}
    assert len(traced) == 8
    assert len(live) == 4
    assert live < traced
    assert all(p.half == "report" for step in menu.baseline.rounds for p in step.prompts)


def test_rollouts_only_where_p_min_needs_them(recipe: Callable[..., Path], bundled: Any) -> None:
    quants = [{"name": "A", "type": "Q8_0"}]
    for draft, steps in (({"n_max": 6}, 0), ({"n_max": 6, "p_min": [0.0, 0.5]}, 6)):
        path = recipe(model=SOURCE, quants=quants, score=score(method="replay", draft=draft))
        forecast = prepare(path).menus[0].forecast
        assert forecast is not None
        assert forecast.drafts[0].replays[0].rollout_steps == steps


def test_gpu_drafts_against_a_baseline_that_leaves_the_gpu_idle_are_warned_of(
    recipe: Callable[..., Path], bundled: Any
) -> None:
    draft = {"n_max": 2, "args": {"n_gpu_layers": 99}}
    path = recipe(model=SOURCE, quants=[{"name": "A", "type": "Q8_0"}], score=score(draft=draft))
    assert any("score.baseline" in w for w in prepare(path).menus[0].warnings)


def test_an_engine_that_is_not_there(recipe: Callable[..., Path]) -> None:
    path = recipe(model=SOURCE, quants=[{"name": "A", "type": "Q8_0"}], engine="nobody")
    with pytest.raises(PrerequisiteError, match="nobody"):
        prepare(path)


def test_arguments_that_the_server_lacks_are_told_before_anything_runs(
    recipe: Callable[..., Path], bundled: Any
) -> None:
    for args, told in (
        ({"cache_type_k": "q6_0"}, "no KV cache of type q6_0"),
        ({"ubatch": 64}, "draft args: ubatch"),
    ):
        path = recipe(
            model=SOURCE,
            quants=[{"name": "A", "type": "Q8_0"}],
            score=score(draft={"n_max": 2, "args": args}),
        )
        with pytest.raises((InputError, PrerequisiteError), match=told):
            prepare(path)


def test_types_are_compared_where_there_are_several(
    recipe: Callable[..., Path], bundled: Any
) -> None:
    rules = [{"routed_experts": "q4_K"}, {"re:.*": "q8_0"}]
    path = recipe(model=SOURCE, quants=[{"name": "A", "type": "Q8_0", "rules": rules}])
    compared = prepare(path).menus[0].types
    assert compared is not None
    assert [step.tensor_type for step in compared.timings] == ["q4_K", "q8_0"]
    path = recipe(model=SOURCE, quants=[{"name": "A", "type": "Q8_0"}])
    assert prepare(path).menus[0].types is None


def test_a_ready_imatrix_that_lacks_what_a_type_needs_is_told_before_anything_runs(
    recipe: Callable[..., Path], bundled: Any, tmp_path: Path
) -> None:
    entry = ImatrixEntry(np.ones((1, 256), np.float32), np.ones(1, np.float32))
    write_gguf(Imatrix({"blk.0.attn_q.weight": entry}, (), 1, 512, "gguf"), tmp_path / "i.gguf")
    rules = [{"dense_ffn": "iq2_s"}, {".*": "q8_0"}]
    path = recipe(
        model=SOURCE,
        imatrix={"file": "i.gguf"},
        quants=[{"name": "A", "type": "Q8_0", "rules": rules}],
    )
    with pytest.raises(RecipeError) as caught:
        prepare(path, engines=[bundled.name], plan_only=True)
    assert "iq2_s needs importance data that the imatrix lacks" in str(caught.value)
