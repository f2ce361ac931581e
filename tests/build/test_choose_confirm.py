"""A predicted choice stands or gives way, by what the live runs say."""

from __future__ import annotations

from cook.build.choose import Chosen, confirm
from cook.record.measured import Interval
from cook.record.objective import Objective
from cook.record.record import Candidate, Excluded, Pick
from tests.build.candidates import DRAFTS, candidate, key


def predicted(
    name: str | None,
    *,
    ties: tuple[str, ...] = (),
    margin: float | None = 0.0,
    excluded: tuple[Excluded, ...] = (),
    ranking: tuple[str, ...] = ("large", "small", "no draft"),
) -> Chosen:
    keys = {n: key(None if n == "no draft" else n) for n in ("large", "small", "no draft")}
    return Chosen(
        key=keys[name] if name else None,
        ranking=tuple(keys[n] for n in ranking),
        ties=tuple(keys[n] for n in ties),
        probability={keys[name]: 0.8} if name else {},
        margin=margin,
        within=0.01,
        excluded=excluded,
        prompts=30,
        names={key: name for name, key in keys.items()},
    )


def confirmed(
    choice: Chosen,
    *candidates: Candidate,
    intervals: dict[tuple[str, str], tuple[float, float]] | None = None,
    objective: Objective = Objective.END_TO_END_SPEED,
) -> Pick:
    def ratio(one: Candidate, other: Candidate) -> Interval | None:
        bounds = (intervals or {}).get((one.name, other.name))
        return Interval(*bounds, 0.95, "given") if bounds else None

    return confirm(
        choice, candidates, DRAFTS, objective=objective, confidence=0.95, ratio_interval=ratio
    )


NO_DRAFT = candidate(None, 10)


def test_a_choice_that_the_live_runs_bear_out_stands() -> None:
    found = confirmed(
        predicted("large"),
        *(NO_DRAFT, candidate("large", 13, 700), candidate("small", 12, 600)),
        intervals={("small", "large"): (0.85, 0.97)},
    )
    assert (found.candidate, found.value, found.ties) == ("large", 13, ())
    assert found.choice is not None
    assert (found.choice.confirmed, found.choice.decided, found.choice.prompts) == (True, True, 30)
    assert found.sentence.startswith("large: 13.00 t/s end to end on 10 prompts, 1.30x no draft")
    assert found.sentence.endswith(
        "predicted best within 1% (at 95% on 30 prompts; probability of being best 80%); "
        "confirmed live."
    )


def test_a_rival_not_surely_faster_live_changes_nothing() -> None:
    found = confirmed(
        predicted("large", ties=("small", "no draft")),
        *(NO_DRAFT, candidate("large", 13, 700), candidate("small", 13.2, 600)),
        intervals={("small", "large"): (0.99, 1.03)},
    )
    assert found.candidate == "large"
    assert found.ties == ("small", "no draft")
    assert "predicted best within 1%" in found.sentence


def test_a_choice_for_its_size_says_what_it_was_not_told_from() -> None:
    found = confirmed(
        predicted("small", margin=0.02, ties=("large",)),
        *(NO_DRAFT, candidate("large", 13, 700), candidate("small", 12.9, 600)),
        intervals={("large", "small"): (0.99, 1.03)},
    )
    assert found.candidate == "small"
    assert found.choice is not None
    assert found.choice.best == "large"
    assert found.sentence.endswith(
        "predicted not to be told from large, the best, at 95% on 30 prompts, "
        "and is the smallest such file; confirmed live."
    )
    bare = confirmed(predicted("no draft", ties=("large",)), NO_DRAFT, candidate("large", 10, 700))
    assert (
        "not to be told from large, the best, at 95% on 30 prompts, and needs no file"
        in bare.sentence
    )


def test_an_undecided_choice_says_what_a_rival_may_gain() -> None:
    found = confirmed(predicted("large", margin=0.034), NO_DRAFT, candidate("large", 13, 700))
    assert (
        "predicted best, but a rival may be up to 3.4% better (at 95% on 30 prompts; "
        in found.sentence
    )
    tied = confirmed(
        predicted("large", margin=0.034, ties=("small", "no draft")),
        *(NO_DRAFT, candidate("large", 13, 700)),
    )
    assert tied.sentence.endswith("80%): small and 1 more; confirmed live.")
    assert found.choice is not None
    assert not found.choice.decided
    few = confirmed(predicted("large", margin=None), NO_DRAFT, candidate("large", 13, 700))
    assert "too few prompts to say how surely" in few.sentence


def test_a_choice_that_is_surely_beaten_live_gives_way_to_the_best_that_beats_it() -> None:
    found = confirmed(
        predicted("large", ties=("small",)),
        *(candidate(None, 15.0), candidate("large", 13, 700), candidate("small", 14.5, 600)),
        intervals={("small", "large"): (1.05, 1.15), ("no draft", "large"): (1.1, 1.2)},
    )
    assert found.candidate == "no draft"
    assert found.choice is not None
    assert (found.choice.candidate, found.choice.confirmed) == ("large", False)
    assert "predicted was large, but live no draft is 1.10 to 1.20 times as good" in found.sentence
    assert found.ties == (), "what tied with the prediction does not tie with the winner"
    assert found.ranking == ("no draft", "large", "small")


def test_a_choice_no_faster_live_than_no_draft_gives_way_to_it() -> None:
    """Even where the two cannot be told apart: no draft needs no file."""
    found = confirmed(
        predicted("large"),
        *(candidate(None, 13.0), candidate("large", 13.0, 700), candidate("small", 12, 600)),
        intervals={("no draft", "large"): (0.9, 1.1)},
    )
    assert found.candidate == "no draft"
    assert "predicted was large, but live it is no faster than no draft" in found.sentence
    assert found.choice is not None
    assert found.choice.confirmed is False


def test_no_draft_gives_way_only_to_a_draft_that_is_surely_faster_live() -> None:
    runs = (candidate(None, 10.0), candidate("large", 10.5, 700))
    kept = confirmed(predicted("no draft"), *runs, intervals={("large", "no draft"): (0.99, 1.1)})
    assert kept.candidate == "no draft"
    beaten = confirmed(predicted("no draft"), *runs, intervals={("large", "no draft"): (1.01, 1.1)})
    assert beaten.candidate == "large"


def test_acceptance_is_never_compared_with_no_draft() -> None:
    found = confirmed(
        predicted("small", ranking=("small", "large")),
        *(candidate(None, 99.0), candidate("small", 9, 800)),
        objective=Objective.ACCEPTANCE,
    )
    assert (found.candidate, found.value) == ("small", 0.8)


def test_a_choice_that_did_not_run_live_is_told_as_predicted() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, candidate("large", None))
    assert (found.candidate, found.value) == ("large", None)
    assert found.choice is not None
    assert found.choice.confirmed is None
    assert found.sentence.endswith("not confirmed live: the server crashed.")
    absent = confirmed(predicted("large"), NO_DRAFT)
    assert absent.sentence.endswith("not confirmed live: no live figures.")


def test_nothing_qualifies_by_prediction() -> None:
    excluded = (Excluded("large", "size_gib 4 is over the limit of 2"),)
    found = confirmed(predicted(None, excluded=excluded, ranking=()), candidate("large", 13, 700))
    assert found.candidate is None
    assert found.sentence == "nothing qualifies: large: size_gib 4 is over the limit of 2"
    assert found.excluded == excluded
