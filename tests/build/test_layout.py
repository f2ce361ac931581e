"""Rounds are balanced, and the budget takes whole configurations from the front."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cook.build.layout import ROUNDS, Configuration, config_name, split_rounds
from cook.build.live_runs import within_budget
from cook.engines.base import DraftSettings
from cook.formats.quant_types import Flavour
from cook.prompts.prompt_set import Prompt
from tests.build.fabricated import FakeEngine
from tests.build.laid_out import layout, score


def prompts(counts: dict[str, int]) -> list[Prompt]:
    return [
        Prompt(f"{category}-{i}", category, "text", "pick")
        for category, count in counts.items()
        for i in range(count)
    ]


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1))
def test_rounds_hold_every_prompt_once_and_categories_evenly(counts: dict[str, int]) -> None:
    given_prompts = prompts(counts)
    rounds = split_rounds(given_prompts)
    assert Counter(p.id for share in rounds for p in share) == Counter(p.id for p in given_prompts)
    if len(rounds) == ROUNDS:
        for category in counts:
            shares = [sum(p.category == category for p in share) for share in rounds]
            assert max(shares) - min(shares) <= 1


def test_names_say_what_is_not_the_default() -> None:
    assert config_name("Q4", DraftSettings(4), None) == "Q4 n_max=4"
    assert config_name("Q4", DraftSettings(8, 2, 0.5), "q8_0") == (
        "Q4 n_max=8 n_min=2 p_min=0.5 kv=q8_0"
    )


def grid(count: int) -> list[Configuration]:
    return [Configuration(str(i), None, None, None, (), None) for i in range(count)]


@given(st.integers(1, 30), st.floats(0.1, 100), st.floats(0.1, 5000))
def test_budget_keeps_a_prefix_within_it(count: int, seconds: float, budget: float) -> None:
    kept, left_out = within_budget(grid(count), seconds, budget)
    assert [c.name for c in kept] + [e.candidate for e in left_out] == [
        str(i) for i in range(count)
    ]
    assert len(kept) == 1 or (len(kept) + 1) * seconds <= budget * (1 + 1e-9)


def test_without_a_measurement_nothing_is_left_out() -> None:
    kept, left_out = within_budget(grid(3), None, 1.0)
    assert len(kept) == 3
    assert left_out == ()


P_MINS: dict[str, Any] = {"draft": {"n_max": [2, 4], "p_min": [0.5, 0.0, 0.8]}}


def test_where_p_min_never_ends_a_draft_all_are_one_setting() -> None:
    spec = score(**P_MINS)
    ik: Any = FakeEngine("ik", Flavour.IK_LLAMA_CPP)
    found = layout(spec, engine=ik)
    assert found.forecast is not None
    assert found.forecast.settings == (DraftSettings(2, 0, 0.5), DraftSettings(4, 0, 0.5))
    assert [c.settings for c in found.grid if c.draft and c.draft.name == "small"] == [
        *found.forecast.settings
    ]
    assert {r.rollout_steps for d in found.forecast.drafts for r in d.replays} == {0}


def test_rollouts_end_where_every_p_min_has_ended_a_draft() -> None:
    found = layout(score(**P_MINS)).forecast
    assert found is not None
    assert len(found.settings) == 6
    replays = [r for d in found.drafts for r in d.replays]
    assert {(r.rollout_steps, r.rollout_floor) for r in replays} == {(4, 0.5)}
    assert all(r.params()["rollout_floor"] == 0.5 for r in replays)
    plain = layout().forecast
    assert plain is not None
    assert all("rollout_floor" not in r.params() for d in plain.drafts for r in d.replays)


def test_the_noise_floor_is_replayed_on_half_of_the_prompts() -> None:
    """It was dearer than the replay of the largest draft."""
    laid = layout(score())
    assert laid.forecast is not None
    assert laid.prompts is not None
    assert laid.forecast.floor is not None
    draft, other = laid.forecast.floor
    assert other.prompts == tuple(p.id for p in laid.prompts.prompts if p.half == "pick")
    assert draft.replays[0].prompts is None
    smaller = laid.forecast.without([draft.draft.name])
    assert smaller is not None
    assert smaller.floor is not None
    assert smaller.floor[0] != draft
    assert smaller.floor[1].prompts == other.prompts
