"""The predicted choice: the best figure, ties to the smaller file, limits, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cook.build.choose import WITHIN, Chosen, choose, rank
from cook.build.forecast import Forecast
from cook.engines.base import DraftSettings
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Excluded
from cook.scoring.intervals import paired_ratio
from tests.build.candidates import UNPRICED

TOKENS = 100
SIZES = {"small": 1_000, "middle": 2_000, "large": 3_000}


def run(prompt: int, ms: float, drafted: int | None, accepted: int | None) -> PromptRun:
    return PromptRun(
        id=f"p{prompt}",
        category="ab"[prompt % 2],
        prompt_n=10,
        prompt_ms=5.0,
        predicted_n=TOKENS + 1,
        predicted_ms=ms,
        wall_ms=ms + 5.0,
        draft_n=drafted,
        draft_n_accepted=accepted,
        tokens=None,
        text="",
        stop="",
    )


def forecast(
    draft: str | None,
    ms: float,
    *,
    n_max: int = 4,
    cache_type: str = "f16",
    prompts: int = 24,
    spread: float = 0.0,
    seed: int = 0,
    accepted: int = 60,
    by_category: tuple[float, float] = (1.0, 1.0),
) -> Forecast:
    """``ms`` a prompt; ``spread`` is the draft's own, beside that of all prompts alike."""
    common = np.random.default_rng(99).lognormal(0, 0.2, prompts)
    own = np.random.default_rng(seed).lognormal(0, spread, prompts)
    counts = (None, None) if draft is None else (TOKENS, accepted)
    return Forecast(
        key=CandidateKey("bundled", draft, DraftSettings(n_max), cache_type)
        if draft
        else CandidateKey("bundled"),
        name=f"{draft} n_max={n_max}" if draft else "no draft",
        priced=UNPRICED,
        runs=tuple(
            run(i, ms * by_category[i % 2] * float(common[i] * own[i]), *counts)
            for i in range(prompts)
        ),
    )


def chosen(
    *forecasts: Forecast,
    objective: Objective = Objective.DECODE_SPEED,
    weights: Mapping[str, float] | None = None,
    excluded: tuple[Excluded, ...] = (),
    sizes: Mapping[str, int | None] = SIZES,
    timing_sd: float = 0.0,
) -> Chosen:
    return choose(forecasts, objective, 0.95, weights, excluded, sizes, timing_sd=timing_sd)


def test_the_fastest_is_chosen_and_the_question_decided() -> None:
    found = chosen(forecast(None, 100), forecast("small", 90), forecast("large", 70))
    assert found.name == "large n_max=4"
    assert found.named(found.ranking) == ("large n_max=4", "small n_max=4", "no draft")
    assert (found.ties, found.decided, found.margin) == ((), True, 0.0)
    assert found.probability[found.ranking[0]] == 1.0
    assert (found.prompts, found.within) == (24, WITHIN)


def test_a_tie_goes_to_the_smaller_file() -> None:
    """Faster by a hair on average, and by no more than prompts differ."""
    found = chosen(
        forecast(None, 100),
        forecast("large", 70, spread=0.1, seed=1),
        forecast("middle", 70.5, spread=0.1, seed=2),
        forecast("small", 71, spread=0.1, seed=3),
    )
    assert found.name == "small n_max=4"
    assert set(found.named(found.ties)) == {"large n_max=4", "middle n_max=4"}
    assert not found.decided


def test_of_one_file_the_better_setting_is_chosen() -> None:
    found = chosen(
        forecast(None, 100),
        forecast("small", 70.0, n_max=4, spread=0.05, seed=1),
        forecast("small", 69.9, n_max=8, spread=0.05, seed=2),
    )
    assert found.key == found.ranking[0]
    assert len(found.ties) == 1


def test_no_draft_wins_a_tie_since_it_has_no_file() -> None:
    found = chosen(forecast(None, 70.2), forecast("small", 70, spread=0.1, seed=1))
    assert found.name == "no draft"


def test_a_file_of_unknown_size_wins_no_tie() -> None:
    twins = (forecast("small", 70), forecast("large", 70))
    assert chosen(*twins, sizes={"small": None, "large": 3_000}).name == "large n_max=4"


def test_a_draft_that_slows_down_loses_to_no_draft() -> None:
    found = chosen(forecast(None, 100), forecast("small", 130))
    assert found.name == "no draft"
    assert found.decided


def test_limits_exclude_with_their_reason() -> None:
    found = chosen(
        forecast(None, 100),
        forecast("small", 80),
        excluded=(Excluded("large n_max=4", "too large"),),
    )
    assert found.name == "small n_max=4"
    assert [(e.candidate, e.reason) for e in found.excluded] == [("large n_max=4", "too large")]
    assert "large n_max=4" not in found.named(found.ranking)


def test_nothing_qualifies() -> None:
    found = chosen(
        forecast(None, 100),
        objective=Objective.ACCEPTANCE,
        excluded=(Excluded("small n_max=4", "no"),),
    )
    assert (found.name, found.ranking, found.margin) == (None, (), None)
    assert len(found.excluded) == 2


@pytest.mark.parametrize("objective", [Objective.ACCEPTANCE, Objective.ACCEPTANCE_LENGTH])
def test_no_draft_has_no_acceptance(objective: Objective) -> None:
    found = chosen(
        forecast(None, 10),
        forecast("small", 99, accepted=80),
        forecast("large", 50, accepted=60),
        objective=objective,
        timing_sd=0.5,
    )
    assert found.name == "small n_max=4"
    assert [e.candidate for e in found.excluded] == ["no draft"]
    assert found.ties == (), "how well it was timed is no matter for acceptance"


def test_what_the_timing_does_not_tell_is_a_tie() -> None:
    """On the prompts alone the difference is sure; two timings of one file differ by as much."""
    pair = (forecast(None, 100), forecast("small", 71), forecast("large", 70))
    assert chosen(*pair).name == "large n_max=4"
    unsure = chosen(*pair, timing_sd=0.02)
    assert unsure.name == "small n_max=4"
    assert unsure.named(unsure.ties) == ("large n_max=4",)
    assert not unsure.decided


def test_settings_of_one_draft_err_together() -> None:
    found = chosen(
        forecast(None, 200),
        forecast("small", 70, n_max=4),
        forecast("small", 71.5, n_max=8),
        timing_sd=0.02,
    )
    assert (found.name, found.ties) == ("small n_max=4", ())


def test_weights_decide_between_drafts_of_different_strengths() -> None:
    one = forecast("small", 70, by_category=(0.5, 1.6))
    other = forecast("large", 70, by_category=(1.6, 0.5))
    for weights, name in (({"a": 9.0, "b": 1.0}, "small"), ({"a": 1.0, "b": 9.0}, "large")):
        assert chosen(forecast(None, 999), one, other, weights=weights).name == f"{name} n_max=4"


def test_one_prompt_ranks_without_a_margin() -> None:
    found = chosen(forecast(None, 100, prompts=1), forecast("small", 70, prompts=1))
    assert (found.name, found.margin, found.decided) == ("small n_max=4", None, False)


@pytest.mark.parametrize(("prompts", "sure"), [(7, False), (8, True)])
def test_below_eight_prompts_nothing_is_said_of_how_sure_it_is(prompts: int, sure: bool) -> None:
    pair = (forecast("small", 70, prompts=prompts), forecast("large", 90, prompts=prompts))
    found = chosen(*pair)
    assert (found.margin is not None) is sure
    assert bool(found.probability) is sure
    interval = paired_ratio(pair[0].runs, pair[1].runs, Objective.DECODE_SPEED, None, 0.95)
    assert (interval is not None) is sure


def test_rank_leaves_no_draft_out() -> None:
    every = [forecast(None, 10), forecast("small", 90), forecast("large", 70)]
    assert [f.key.draft for f in rank(every, Objective.END_TO_END_SPEED, None)] == [
        "large",
        "small",
    ]


@settings(max_examples=25, deadline=None)
@example([69.5, 69.0, 68.0], 61, 0.02)
@given(
    speeds=st.lists(st.floats(50, 150), min_size=3, max_size=3),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0.0, 0.02, 0.2]),
)
def test_the_choice_is_a_tie_and_no_larger_than_the_leader(
    speeds: list[float], seed: int, spread: float
) -> None:
    every = [forecast(None, 100)]
    for number, (name, ms) in enumerate(zip(SIZES, speeds, strict=True)):
        every.append(forecast(name, ms, spread=spread, seed=seed + number))
    found = chosen(*every)
    assert found.name is not None
    tied = {found.name, *found.named(found.ties)}
    size = {"no draft": 0} | {f"{n} n_max=4": s for n, s in SIZES.items()}
    assert found.names[found.ranking[0]] in tied
    # Not the smallest of the ties: with many candidates a tie may be far behind.
    assert size[found.name] <= size[found.names[found.ranking[0]]]
    assert set(found.named(found.ranking)) == set(size)
    assert sum(found.probability.values()) == pytest.approx(1.0)


def test_a_draft_that_drafts_nothing_has_no_acceptance() -> None:
    """A high p_min: the others are compared all the same."""
    from dataclasses import replace

    idle = forecast("large", 100)
    idle = replace(idle, runs=tuple(replace(r, draft_n=0, draft_n_accepted=0) for r in idle.runs))
    found = chosen(
        idle, forecast("small", 90), forecast("middle", 95), objective=Objective.ACCEPTANCE
    )
    assert found.name == "small n_max=4"
    assert found.margin is not None
    assert [e.reason for e in found.excluded] == ["it drafts nothing"]


def test_replies_of_one_token_say_nothing() -> None:
    from dataclasses import replace

    short = tuple(
        replace(f, runs=tuple(replace(r, predicted_n=1, predicted_ms=0.0) for r in f.runs))
        for f in (forecast(None, 100), forecast("small", 90))
    )
    found = chosen(*short)
    assert found.name is None
    assert {e.reason for e in found.excluded} == {"no reply goes on after its first token"}
