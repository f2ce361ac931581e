"""What is said of a pick, and that it contradicts no row of its table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cook.build.sentence import Evidence, nothing_qualifies, pick_sentence
from cook.engines.ngram_settings import NgramSettings, NgramType
from cook.record.measured import Interval, Prediction
from cook.record.objective import Objective
from cook.record.outcomes import SelfCheckOutcome
from cook.record.record import Candidate, Certainty, Excluded
from tests.build.candidates import candidate, figures

SURE = Certainty(True, 0.01, 0.97, 0.9, "large")
OPEN = Certainty(False, 0.01, 0.4, 0.4, "large", gain=0.07, chances={"large": 0.4, "small": 0.3})
NO_DRAFT = candidate(None, 10)
SMALL = candidate("small", 12, 600)


def gained(draft: str, speed: float, low: float, high: float) -> Candidate:
    interval = Interval(low, high, 0.95, "pairs")
    return replace(candidate(draft, speed, 700), speedup_interval=interval)


LARGE = gained("large", 13, 1.17, 1.45)
PREDICTION = Prediction(figures(12, 600), 1.0, 0.0, 0.0, 0.0, 0.0, None, None, None)


def say(
    winner: Candidate = LARGE,
    certainty: Certainty = SURE,
    *,
    objective: Objective = Objective.END_TO_END_SPEED,
    ties: tuple[str, ...] = (),
    others: tuple[Candidate, ...] = (NO_DRAFT, SMALL),
    **changes: Any,
) -> str:
    told = replace(certainty, **changes)
    return pick_sentence(Evidence(objective, 0.95, told, ties, winner, (winner, *others)))


def test_what_how_much_faster_over_what_and_how_sure() -> None:
    assert say() == (
        "large is 1.30x as fast as no draft end to end (95%: 1.17 to 1.45), live on 10 prompts, "
        "1,000 tokens, acceptance 70.0%. No other candidate is more than 1% better (95%)."
    )


def test_without_a_live_run_of_no_draft_no_gain_is_said() -> None:
    """Its server had failed, and a draft of 30 t/s was "as fast as no draft", forecast at 92."""
    alone = replace(LARGE, speedup=None, speedup_interval=None, decode_speedup=None)
    told = say(alone, others=(replace(NO_DRAFT, live=None),), certainty=OPEN)
    assert told.startswith(
        "large runs at 13.00 t/s end to end, live on 10 prompts, 1,000 tokens, acceptance 70.0%; "
        "no live run without a draft to compare it with. "
    )
    assert "as fast" not in told


def test_of_a_rival_the_forecast_is_told_and_its_counts() -> None:
    """Its live speed hangs on what the server saw before."""
    predicted = replace(PREDICTION, figures=figures(12, 600))
    bare = replace(NO_DRAFT, predicted=replace(PREDICTION, figures=figures(10)))
    rival = replace(
        candidate("ngram-mod", 30, 600),
        settings=None,
        ngram=NgramSettings(NgramType.MOD),
        predicted=predicted,
        counts=SelfCheckOutcome(6, 6, 40, 30, 40, 30),
    )
    told = say(rival, replace(SURE, leader="ngram-mod"), others=(bare, SMALL))
    assert told.startswith(
        "ngram-mod is predicted to be 1.20x as fast as no draft end to end, on 10 prompts, 1,000 "
        "tokens; it drafted and had accepted as simulated in 6 of 6 live requests. "
    )
    assert "needs no file" in say(rival, others=(bare, SMALL))


def test_a_gain_that_may_be_none_says_so() -> None:
    assert "(95%: 0.66 to 1.90, so it may also be slower)" in say(gained("large", 11, 0.66, 1.9))
    assert "(95%: 0.66 to 0.90, so it slows down)" in say(gained("large", 8, 0.66, 0.9))


def test_a_tie_is_what_is_shown_to_be_one() -> None:
    assert say(equal=("large", "small")).endswith(" It ties with small within 1% (95%).")
    assert say(SMALL).endswith(
        " It ties with large, the best expected, within 1% (95%), and is the smaller file."
    )


def test_undecided_names_the_rivals_and_what_to_do() -> None:
    text = say(certainty=OPEN, ties=("small", "no draft"))
    assert text.partition(". ")[2] == (
        "Which candidate is best is undecided: it is expected to be best, but small and no draft "
        "may be up to 7% better (95%; margin 1%). More prompts would decide (score.limit), or a "
        "wider pick.margin."
    )
    assert " tie" not in text
    cost = say(certainty=OPEN, rounds_to_decide=1, seconds_to_decide=20.0)
    assert cost.endswith(
        " About 1 more live round would decide: raise score.live_budget by 1 minute."
    )


@pytest.mark.parametrize(("gain", "told"), [(0.002, "as good"), (3.0, "more than twice as good")])
def test_a_rival_s_gain_is_said_in_words_that_mean_something(gain: float, told: str) -> None:
    """It said "up to 11495.6% better"."""
    assert f"another candidate may be {told} (95%" in say(certainty=OPEN, gain=gain)


def test_a_row_that_did_better_live_is_named() -> None:
    faster = candidate("small", 14, 600)
    text = say(certainty=OPEN, others=(NO_DRAFT, faster))
    assert "best by all that was measured, though small did better live, but" in text


def test_no_draft_tells_what_the_fastest_draft_does() -> None:
    assert say(NO_DRAFT, others=(gained("small", 9, 0.8, 1.05),), leader="no draft") == (
        "No draft is best: 10.00 t/s end to end, live on 10 prompts, 1,000 tokens; the fastest "
        "draft, small, is 0.90x as fast end to end (95%: 0.80 to 1.05, so it may also be slower). "
        "No other candidate is more than 1% better (95%)."
    )


def test_other_aims_name_what_they_maximize() -> None:
    decode = say(replace(LARGE, decode_speedup=1.5), objective=Objective.DECODE_SPEED)
    assert decode.startswith("large decodes 1.50x as fast as no draft, 1.30x end to end (95%: ")
    assert say(objective=Objective.ACCEPTANCE).startswith(
        "large has 70.0% of its drafted tokens accepted, live on 10 prompts, 1,000 tokens; it is "
        "1.30x as fast as no draft end to end"
    )
    assert say(objective=Objective.ACCEPTANCE_LENGTH).startswith("large comes to 3.33 tokens a")


def test_disturbed_runs_are_to_be_measured_again_before_anything_else() -> None:
    text = say(certainty=OPEN, objection="disturbed (no draft: busy)", rounds_to_decide=3)
    assert text.endswith(
        " Live runs were disturbed (no draft: busy): measure again on an idle machine (`--fresh`) "
        "before you trust these speeds."
    )
    assert "would decide" not in text


def test_a_forecast_that_is_wrong_is_told_as_that() -> None:
    text = say(objection="not as forecast (large: it took 1.40 times the time, twice alike)")
    assert text.endswith(
        " Live runs were not as forecast (large: it took 1.40 times the time, twice alike): what "
        "did not run may be as far from its forecast; `method: live` runs every candidate."
    )
    assert "idle machine" not in text


def test_nothing_qualifies_says_why() -> None:
    told = nothing_qualifies([Excluded("large", "too large")])
    assert told == "nothing qualifies: large: too large"
