"""Prompts are dealt evenly, and settings that are one on an engine are laid out once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.job.layout import config_name, dealt_into
from cook.prompts.prompt_set import Prompt
from tests.job.fabricated import FakeEngine
from tests.job.laid_out import layout, score


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1), st.integers(1, 5)
)
def test_shares_hold_every_prompt_once_and_categories_evenly(
    counts: dict[str, int], count: int
) -> None:
    prompts = [
        Prompt(f"{category}-{i}", category, "text", "pick")
        for category, number in counts.items()
        for i in range(number)
    ]
    shares = dealt_into(prompts, count)
    assert Counter(p.id for share in shares for p in share) == Counter(p.id for p in prompts)
    assert all(shares)
    assert len(shares) == min(count, len(prompts)) or len(shares) < count
    for category in counts:
        held = [sum(p.category == category for p in share) for share in shares]
        assert max(held) - min([*held, *[0] * (count - len(shares))]) <= 1


def test_names_say_what_is_not_the_default() -> None:
    assert config_name("Q4", DraftSettings(4), None) == "Q4 n_max=4"
    assert config_name("Q4", DraftSettings(8, 2, 0.5), "q8_0") == (
        "Q4 n_max=8 n_min=2 p_min=0.5 kv=q8_0"
    )


P_MINS: dict[str, Any] = {"draft": {"n_max": [2, 4], "p_min": [0.5, 0.0, 0.8]}}


def test_where_p_min_never_ends_a_draft_all_are_one_setting() -> None:
    found = layout(score(**P_MINS), engine=FakeEngine("ik", Flavour.IK_LLAMA_CPP))
    settings = (DraftSettings(2, 0, 0.5), DraftSettings(4, 0, 0.5))
    assert found.forecast.settings == settings
    assert tuple(c.key.settings for c in found.grid if c.key.draft == "small") == settings
    assert {d.replay.rollout_steps for d in found.forecast.drafts} == {0}


def test_rollouts_end_where_every_p_min_has_ended_a_draft() -> None:
    found = layout(score(**P_MINS)).forecast
    assert len(found.settings) == 6
    replays = [d.replay for d in found.drafts]
    assert {(r.rollout_steps, r.rollout_floor) for r in replays} == {(4, 0.5)}
    assert all(r.params()["rollout_floor"] == 0.5 for r in replays)
    plain = layout().forecast
    assert all("rollout_floor" not in d.replay.params() for d in plain.drafts)


def test_every_server_has_every_prompt_and_every_draft_one_replay() -> None:
    found = layout()
    for one in (found.baseline, *found.grid):
        assert one.live.prompts == found.prompts.prompts
        assert one.live.name == one.name
    assert len({c.key for c in found.grid}) == len(found.grid) == 6
    labels = [step.label for step in found.forecast.steps()]
    assert len(labels) == len(set(labels)) == 1 + 3 + 3, "trace; replays, and the floor's; curves"


def test_a_draft_that_is_left_out_is_neither_forecast_nor_run() -> None:
    found = layout()
    fewer = found.without(["large"])
    assert {c.draft.name for c in fewer.grid if c.draft} == {"small"}
    assert [d.draft.name for d in fewer.forecast.drafts] == ["small"]
    assert list(fewer.making()) == list(found.making()), "it is measured all the same"
    assert found.without(["small", "large"]).forecast is None
    gone = {s.key for s in found.forecast.steps()} - {s.key for s in fewer.forecast.steps()}
    assert any(s.label == "replay large (bundled)" for s in found.all_steps() if s.key in gone)


def test_the_noise_floor_is_replayed_on_half_of_the_prompts() -> None:
    """It was dearer than the replay of the largest draft."""
    found = layout()
    floor = found.forecast.floor
    assert floor.replay.prompts == tuple(p.id for p in found.prompts.prompts if p.half == "pick")
    assert {d.replay.prompts for d in found.forecast.drafts} == {None}
    smaller = found.forecast.without([floor.draft.name]).floor
    assert smaller.draft != floor.draft
    assert smaller.replay.prompts == floor.replay.prompts
