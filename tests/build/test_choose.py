"""The pick follows its rules: limits, ties to the smaller file, no draft always in."""

from __future__ import annotations

from cook.build.choose import Limits, pick
from cook.record.measured import Interval
from cook.record.objective import Objective
from cook.record.record import Candidate, Draft, Pick
from tests.build.candidates import DRAFTS, SURE, candidate, draft


def choose(
    *candidates: Candidate,
    intervals: dict[tuple[str, str], tuple[float, float]] | None = None,
    limits: Limits | None = None,
    objective: Objective = Objective.END_TO_END_SPEED,
    drafts: dict[str, Draft] | None = None,
) -> Pick:
    known = SURE if intervals is None else intervals

    def ratio(one: Candidate, other: Candidate) -> Interval | None:
        bounds = known.get((one.name, other.name))
        return Interval(*bounds, 0.95, "given") if bounds else None

    return pick(
        candidates,
        drafts or DRAFTS,
        objective=objective,
        limits=limits or Limits(),
        confidence=0.95,
        ratio_interval=ratio,
    )


def test_the_fastest_wins() -> None:
    result = choose(candidate(None, 10), candidate("small", 11), candidate("large", 13, 700))
    assert result.candidate == "large"
    assert result.ranking == ("large", "small", "no draft")
    assert (
        "13.00 t/s end to end on 10 prompts, 1.30x no draft, acceptance 70.0% (700/1000)"
        in result.sentence
    )


def test_a_tie_goes_to_the_smaller_file() -> None:
    ties = {("small", "large"): (0.97, 1.01), ("no draft", "large"): (0.7, 0.8)}
    result = choose(
        candidate(None, 10), candidate("small", 12.9), candidate("large", 13), intervals=ties
    )
    assert result.candidate == "small"
    assert result.ties == ("large",)
    assert "not told apart from large, and it is the smallest file" in result.sentence


def test_a_tie_with_no_draft_goes_to_no_draft() -> None:
    ties = {("no draft", "small"): (0.95, 1.02)}
    result = choose(candidate(None, 10), candidate("small", 10.1), intervals=ties)
    assert result.candidate == "no draft"
    assert "needs no draft file" in result.sentence


def test_a_draft_that_slows_down_loses() -> None:
    result = choose(candidate(None, 10), candidate("small", 8), intervals={})
    assert result.candidate == "no draft"
    assert "none of the drafts that qualify is surely better" in result.sentence


def test_limits_exclude_with_the_figure() -> None:
    result = choose(
        candidate(None, 10), candidate("large", 13), intervals={}, limits=Limits(size_gib=2)
    )
    assert result.candidate == "no draft"
    assert [e.reason for e in result.excluded] == ["size_gib 4 is over the limit of 2"]


def test_what_was_not_measured_cannot_win() -> None:
    drafts = {"small": draft("small", 1, kld=None)}
    result = choose(
        candidate(None, 10),
        candidate("small", 99),
        intervals={},
        limits=Limits(kld=0.1),
        drafts=drafts,
    )
    assert result.candidate == "no draft"
    assert result.excluded[0].reason == (
        "kld is limited to 0.1 but was not measured (not asked for)"
    )


def test_a_failed_candidate_is_excluded_with_its_reason() -> None:
    result = choose(candidate(None, 10), candidate("small", None), intervals={})
    assert result.excluded[0].reason == "the server crashed"


def test_no_draft_has_no_acceptance() -> None:
    result = choose(
        candidate(None, 10),
        candidate("small", 9, 600),
        objective=Objective.ACCEPTANCE,
        intervals={},
    )
    assert result.candidate == "small"
    assert result.excluded[0].reason == "no draft has no acceptance"


def test_nothing_qualifies() -> None:
    result = choose(candidate(None, None), candidate("small", None), intervals={})
    assert result.candidate is None
    assert result.sentence.startswith("nothing qualifies: ")
