"""The predicted choice: the best figure, ties to the smaller file, limits, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cook.build.choose import Aim, Chosen, ForecastErrors, choose, rank
from cook.build.forecast import Forecast
from cook.engines.base import DraftSettings
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Excluded
from cook.scoring.noise import LogSpread
from cook.scoring.rounds import Round, Rounds
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
    model_sd: float = 0.0,
    margin: float = 0.01,
) -> Chosen:
    errors = ForecastErrors(LogSpread(timing_sd, 1000), LogSpread(model_sd, 1000))
    aim = Aim(objective, 0.95, margin, weights)
    return choose(forecasts, aim, excluded, sizes, errors=errors)


def test_the_fastest_is_chosen_and_the_question_decided() -> None:
    found = chosen(forecast(None, 100), forecast("small", 90), forecast("large", 70))
    assert found.name == "large n_max=4"
    assert found.named(found.ranking) == ("large n_max=4", "small n_max=4", "no draft")
    assert (found.ties, found.decided, found.margin) == ((), True, 0.0)
    assert found.probability[found.ranking[0]] == 1.0
    assert (found.prompts, found.within) == (24, 0.01)


def test_what_cannot_be_told_from_the_best_is_undecided_whatever_its_size() -> None:
    """Faster by a hair on average, and by no more than prompts differ."""
    found = chosen(
        forecast(None, 100),
        forecast("large", 70, spread=0.1, seed=1),
        forecast("middle", 70.5, spread=0.1, seed=2),
        forecast("small", 71, spread=0.1, seed=3),
    )
    assert found.key == found.ranking[0]
    assert not found.decided
    assert len(found.ties) == 2
    assert 0 < found.chance[found.ranking[0]] < 0.95


def test_the_noisier_the_timings_the_less_a_smaller_file_wins() -> None:
    """It was the other way round: what noise did not tell apart was a tie, and the smallest file
    won it, 5 % behind."""
    pair = (forecast(None, 900), forecast("small", 70.3), forecast("large", 70))
    assert chosen(*pair).name == "small n_max=4", "shown to be within 1 %"
    for sd in (0.01, 0.05, 0.2):
        found = chosen(*pair, timing_sd=sd)
        assert (found.name, found.decided) == ("large n_max=4", False)


def test_of_one_file_the_better_setting_is_chosen() -> None:
    found = chosen(
        forecast(None, 100),
        forecast("small", 70.0, n_max=4, spread=0.05, seed=1),
        forecast("small", 69.9, n_max=8, spread=0.05, seed=2),
    )
    assert found.key == found.ranking[0]
    assert len(found.ties) == 1


def test_no_draft_wins_where_it_is_as_good_since_it_has_no_file() -> None:
    assert chosen(forecast(None, 70.2), forecast("small", 70)).name == "no draft"
    unsure = chosen(forecast(None, 70.2), forecast("small", 70, spread=0.1, seed=1))
    assert unsure.key == unsure.ranking[0]


def test_a_file_of_unknown_size_takes_nobodys_place() -> None:
    twins = (forecast("small", 70), forecast("large", 70))
    assert chosen(*twins, sizes={"small": None, "large": 3_000}).name == "large n_max=4"


def test_the_margin_says_how_much_worse_a_smaller_file_may_be() -> None:
    pair = (forecast(None, 900), forecast("small", 71.5), forecast("large", 70))
    assert chosen(*pair).name == "large n_max=4"
    assert chosen(*pair, margin=0.05).name == "small n_max=4"
    assert chosen(*pair, margin=0.0).name == "large n_max=4"


def test_what_the_model_errs_by_is_part_of_the_chance_of_being_best() -> None:
    pair = (forecast(None, 900), forecast("small", 71), forecast("large", 70))
    sure, unsure = chosen(*pair), chosen(*pair, model_sd=0.02)
    assert sure.probability[sure.ranking[0]] == 1.0
    assert 0.55 < unsure.probability[unsure.ranking[0]] < 0.85
    assert not unsure.decided


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
    assert unsure.name == "large n_max=4"
    assert unsure.named(unsure.ties) == ("small n_max=4",)
    assert not unsure.decided


def test_live_rounds_say_something_of_all_that_share_their_errors() -> None:
    """Of two drafts, forecast alike, one lives 6 % slower: its other length is believed slower
    too, and the other draft is the best expected."""
    small, longer, large = (
        forecast("small", 70, n_max=4),
        forecast("small", 69.8, n_max=8),
        forecast("large", 70.4),
    )
    bare = forecast(None, 100)
    slow = tuple(replace(r, predicted_ms=r.predicted_ms * 1.06) for r in small.runs)
    lived = {bare.key: bare.runs, small.key: slow, large.key: large.runs}
    live = Rounds(tuple(Round(0, lived) for _ in range(4)), Objective.DECODE_SPEED)
    every = [bare, small, longer, large]
    aim = Aim(Objective.DECODE_SPEED)
    errors = ForecastErrors(None, LogSpread(0.02, 8))
    before = choose(every, aim, (), SIZES, errors=errors)
    after = choose(every, aim, (), SIZES, errors=errors, live=live)
    assert before.name == "small n_max=8"
    assert after.name == "large n_max=4"
    assert after.probability[large.key] > 0.95
    assert after.probability[longer.key] < before.probability[longer.key] / 4


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


@pytest.mark.parametrize("objective", [Objective.ACCEPTANCE, Objective.ACCEPTANCE_LENGTH])
def test_weights_decide_what_acceptance_is_maximized(objective: Objective) -> None:
    """The verdict was weighted, figure and ranking were not."""

    def accepting(draft: str, a: int, b: int) -> Forecast:
        found = forecast(draft, 70)
        by = {"a": a, "b": b}
        runs = tuple(replace(r, draft_n_accepted=by[r.category]) for r in found.runs)
        return replace(found, runs=runs)

    pair = accepting("small", 80, 30), accepting("large", 40, 60)
    for weights, name in (({"a": 9.0, "b": 1.0}, "small"), ({"a": 1.0, "b": 9.0}, "large")):
        found = chosen(*pair, objective=objective, weights=weights)
        assert found.name == f"{name} n_max=4"
        assert found.ranking[0] == found.key
        assert found.decided
        assert rank(pair, objective, weights)[0].key == found.key


def test_one_prompt_ranks_without_a_margin() -> None:
    found = chosen(forecast(None, 100, prompts=1), forecast("small", 70, prompts=1))
    assert (found.name, found.margin, found.decided) == ("small n_max=4", None, False)


@pytest.mark.parametrize(("prompts", "sure"), [(7, False), (8, True)])
def test_below_eight_prompts_nothing_is_said_of_how_sure_it_is(prompts: int, sure: bool) -> None:
    pair = (forecast("small", 70, prompts=prompts), forecast("large", 90, prompts=prompts))
    found = chosen(*pair)
    assert (found.margin is not None) is sure
    assert bool(found.probability) is sure
    one = Round(0, {f.key: f.runs for f in pair})
    told = Rounds((one,), Objective.DECODE_SPEED, started=LogSpread(0.01, 10))
    assert (told.ratio(pair[0].key, pair[1].key, 0.95) is not None) is sure


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
def test_the_choice_is_the_leader_or_smaller_and_shown_as_good(
    speeds: list[float], seed: int, spread: float
) -> None:
    every = [forecast(None, 100)]
    for number, (name, ms) in enumerate(zip(SIZES, speeds, strict=True)):
        every.append(forecast(name, ms, spread=spread, seed=seed + number))
    found = chosen(*every)
    assert found.key is not None
    assert found.name is not None
    leader = found.ranking[0]
    size = {"no draft": 0} | {f"{n} n_max=4": s for n, s in SIZES.items()}
    if found.key != leader:
        assert size[found.name] < size[found.names[leader]]
        assert found.chance[found.key] >= 0.95
        assert found.decided
    if not found.decided:
        assert found.key == leader
    assert set(found.named(found.ranking)) == set(size)
    assert sum(found.probability.values()) == pytest.approx(1.0)
    assert all(found.chance[k] >= found.probability[k] - 1e-9 for k in found.ranking)


def test_a_draft_that_drafts_nothing_has_no_acceptance() -> None:
    """A high p_min: the others are compared all the same."""
    idle = forecast("large", 100)
    idle = replace(idle, runs=tuple(replace(r, draft_n=0, draft_n_accepted=0) for r in idle.runs))
    found = chosen(
        idle, forecast("small", 90), forecast("middle", 95), objective=Objective.ACCEPTANCE
    )
    assert found.name == "small n_max=4"
    assert found.margin is not None
    assert [e.reason for e in found.excluded] == ["it drafts nothing"]


def test_replies_of_one_token_say_nothing() -> None:
    short = tuple(
        replace(f, runs=tuple(replace(r, predicted_n=1, predicted_ms=0.0) for r in f.runs))
        for f in (forecast(None, 100), forecast("small", 90))
    )
    found = chosen(*short)
    assert found.name is None
    assert {e.reason for e in found.excluded} == {"no reply goes on after its first token"}


def test_drafts_of_one_file_err_together_and_alike_at_one_setting() -> None:
    """As in contexts of different length: what is the same is no open question."""
    every = forecast(None, 200), forecast("small", 70), forecast("large", 70)
    aim, noisy = Aim(Objective.DECODE_SPEED, 0.95, 0.01), LogSpread(0.05, 1000)
    apart = choose(every, aim, (), SIZES, errors=ForecastErrors(noisy, noisy))
    assert not apart.decided
    one_file = {"small": "file", "large": "file"}
    together = choose(every, aim, (), SIZES, errors=ForecastErrors(noisy, noisy, one_file))
    assert together.decided
    assert len(together.equal) == 2
