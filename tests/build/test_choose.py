"""The pick by live runs alone: limits, the best expected, smaller files shown to be as good."""

from __future__ import annotations

from cook.build.choose import Aim, Limits, pick
from cook.record.objective import Objective
from cook.record.record import Candidate, Draft, Pick
from tests.build.candidates import DRAFTS, candidate, draft, rounds


def choose(
    *candidates: Candidate,
    noise: float = 0.001,
    limits: Limits | None = None,
    objective: Objective = Objective.END_TO_END_SPEED,
    drafts: dict[str, Draft] | None = None,
    prompts: int = 16,
    margin: float = 0.01,
) -> Pick:
    return pick(
        candidates,
        drafts or DRAFTS,
        aim=Aim(objective, 0.95, margin),
        limits=limits or Limits(),
        live=rounds(*candidates, objective=objective, noise=noise, prompts=prompts),
    )


def test_the_fastest_wins() -> None:
    result = choose(candidate(None, 10), candidate("small", 11), candidate("large", 13, 700))
    assert result.candidate == "large"
    assert result.ranking == ("large", "small", "no draft")
    assert result.sentence == (
        "large is 1.30x as fast as no draft end to end, live on 10 prompts, 1,000 tokens, "
        "acceptance 70.0%. No other candidate is more than 1% better (95%)."
    )


def test_a_smaller_file_wins_where_it_is_shown_to_be_as_good() -> None:
    result = choose(candidate(None, 10), candidate("small", 12.97), candidate("large", 13))
    assert result.candidate == "small"
    assert "It ties with large, the best expected, within 1% (95%)" in result.sentence
    assert result.certainty is not None
    assert (result.certainty.decided, result.certainty.leader) == (True, "large")


def test_a_tie_out_of_ignorance_goes_to_the_best_expected_and_is_undecided() -> None:
    """What cannot be told from the best is not thereby as good: noise is no argument."""
    pair = candidate("small", 12.8), candidate("large", 13)
    result = choose(candidate(None, 10), *pair, noise=0.03)
    assert result.candidate == result.ranking[0]
    assert len(result.ties) == 1
    assert "Which candidate is best is undecided" in result.sentence
    assert result.certainty is not None
    assert not result.certainty.decided
    assert result.certainty.within is not None
    assert 0.3 < result.certainty.within < 0.98


def test_the_margin_is_the_recipes() -> None:
    pair = candidate("small", 12.5), candidate("large", 13)
    assert choose(candidate(None, 10), *pair).candidate == "large"
    assert choose(candidate(None, 10), *pair, margin=0.06).candidate == "small"


def test_no_draft_wins_where_it_is_as_good() -> None:
    result = choose(candidate(None, 10.1), candidate("small", 10.12))
    assert result.candidate == "no draft"
    assert "needs no file" in result.sentence


def test_a_draft_that_slows_down_loses() -> None:
    result = choose(candidate(None, 10), candidate("small", 8))
    assert result.candidate == "no draft"


def test_limits_exclude_with_the_figure() -> None:
    result = choose(candidate(None, 10), candidate("large", 13), limits=Limits(size_gib=2))
    assert result.candidate == "no draft"
    assert [e.reason for e in result.excluded] == ["size_gib 4 is over the limit of 2"]


def test_what_was_not_measured_cannot_win() -> None:
    drafts = {"small": draft("small", 1, kld=None)}
    result = choose(
        candidate(None, 10),
        candidate("small", 99),
        limits=Limits(kld=0.1),
        drafts=drafts,
    )
    assert result.candidate == "no draft"
    assert result.excluded[0].reason == (
        "kld is limited to 0.1 but was not measured (not asked for)"
    )


def test_a_failed_candidate_is_excluded_with_its_reason() -> None:
    result = choose(candidate(None, 10), candidate("small", None))
    assert result.excluded[0].reason == "the server crashed"


def test_no_draft_has_no_acceptance() -> None:
    result = choose(
        candidate(None, 10),
        candidate("small", 9, 600),
        objective=Objective.ACCEPTANCE,
    )
    assert result.candidate == "small"
    assert result.excluded[0].reason == "no draft has no acceptance"


def test_below_eight_prompts_nothing_is_decided() -> None:
    result = choose(candidate(None, 10), candidate("small", 13), prompts=7)
    assert result.candidate == "small"
    assert "Which candidate is best is undecided." in result.sentence
    assert result.certainty is not None
    assert result.certainty.within is None


def test_nothing_qualifies() -> None:
    result = choose(candidate(None, None), candidate("small", None))
    assert result.candidate is None
    assert result.sentence.startswith("nothing qualifies: ")
