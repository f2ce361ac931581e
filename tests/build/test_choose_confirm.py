"""The final choice beside what was predicted of it, and what the live runs say to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cook.build.choose import Aim, Chosen, DecidingCost, confirm
from cook.record.objective import Objective
from cook.record.record import Candidate, CandidateKey, Excluded, Pick
from tests.build.candidates import candidate, key, rounds

KEYS = {n: key(None if n == "no draft" else n) for n in ("large", "small", "no draft")}


def predicted(
    name: str | None,
    *,
    ties: tuple[str, ...] = (),
    margin: float | None = 0.0,
    excluded: tuple[Excluded, ...] = (),
    ranking: tuple[str, ...] = ("large", "small", "no draft"),
    decided: bool = True,
    chance: float = 0.97,
) -> Chosen:
    return Chosen(
        key=KEYS[name] if name else None,
        ranking=tuple(KEYS[n] for n in ranking),
        ties=tuple(KEYS[n] for n in ties),
        probability=dict.fromkeys((KEYS[n] for n in ranking), 0.8) if margin is not None else {},
        margin=margin,
        within=0.01,
        excluded=excluded,
        prompts=30 if margin is not None else 5,
        names={key: name for name, key in KEYS.items()},
        decided=decided and margin is not None,
        chance=dict.fromkeys((KEYS[n] for n in ranking), chance) if margin is not None else {},
    )


def confirmed(
    choice: Chosen,
    *candidates: Candidate,
    before: Chosen | None = None,
    objective: Objective = Objective.END_TO_END_SPEED,
    noise: float = 0.001,
    disturbed: Mapping[CandidateKey, str] | None = None,
    cost: DecidingCost | None = None,
) -> Pick:
    """``choice`` at the end, which was also ``before`` the live runs unless that is given."""
    return confirm(
        before or choice,
        choice,
        candidates,
        aim=Aim(objective),
        live=rounds(*candidates, objective=objective, noise=noise),
        disturbed=disturbed or {},
        cost=cost,
    )


NO_DRAFT = candidate(None, 10)
LARGE, SMALL = candidate("large", 13, 700), candidate("small", 12, 600)


def test_a_choice_that_the_live_runs_bear_out_is_confirmed() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL)
    assert (found.candidate, found.value, found.ties) == ("large", 13, ())
    assert found.choice is not None
    assert (found.choice.confirmed, found.choice.decided, found.choice.prompts) == (True, True, 30)
    assert found.sentence.startswith("large: 13.00 t/s end to end on 10 prompts, 1.30x no draft")
    assert found.sentence.endswith(
        "; best within 1% (at 95% on 30 prompts; chance of being the best 80%); confirmed live."
    )
    assert found.certainty is not None
    assert (found.certainty.decided, found.certainty.objection) == (True, None)


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        ((LARGE, SMALL), "no draft did not run"),
        ((NO_DRAFT, LARGE), "no rival ran"),
        ((NO_DRAFT, candidate("small", 12)), "no live figures"),
    ],
)
def test_without_rival_or_no_draft_nothing_is_confirmed(
    ran: tuple[Candidate, ...], why: str
) -> None:
    found = confirmed(predicted("large"), *ran)
    assert found.sentence.endswith(f"; not confirmed live: {why}.")
    assert found.certainty is not None
    assert found.certainty.objection == why


def test_live_runs_that_tell_nothing_confirm_nothing() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, noise=0.1)
    assert "; not confirmed live: it ran at " in found.sentence
    assert " (95%)." in found.sentence


def test_disturbed_runs_confirm_nothing() -> None:
    why = {KEYS["no draft"]: "other programs kept 1.3 cores busy"}
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, disturbed=why)
    assert found.sentence.endswith(
        "not confirmed live: disturbed (no draft: other programs kept 1.3 cores busy)."
    )


def test_a_smaller_file_says_of_whom_it_takes_the_place() -> None:
    found = confirmed(predicted("small"), NO_DRAFT, LARGE, candidate("small", 12.97, 600))
    assert found.candidate == "small"
    assert found.choice is not None
    assert found.choice.best == "large"
    assert (
        "; shown to be within 1% of large, the best expected, at 95% on 30 prompts, and a smaller "
        "file; confirmed live." in found.sentence
    )


def test_an_undecided_choice_says_so_and_what_deciding_costs() -> None:
    choice = predicted("large", margin=0.034, decided=False, chance=0.4, ties=("small", "no draft"))
    found = confirmed(choice, NO_DRAFT, LARGE, SMALL, cost=DecidingCost(6, 500.0))
    assert (
        "best expected, but undecided: within 1% of the best with a chance of 40%, and a rival may "
        "be up to 3.4% better (at 95% on 30 prompts; chance of being the best 80%): small and 1 "
        "more; deciding takes about 6 more live rounds, 8 minutes" in found.sentence
    )
    kept = found.certainty
    assert kept is not None
    assert (kept.decided, kept.within, kept.rounds_to_decide) == (False, 0.4, 6)
    few = confirmed(predicted("large", margin=None), NO_DRAFT, LARGE, SMALL)
    assert "best expected, but undecided (too few prompts to say how surely)" in few.sentence


def test_a_prediction_that_did_not_stand_is_told_with_what_live_runs_show() -> None:
    found = confirmed(
        predicted("large"),
        *(NO_DRAFT, candidate("large", 12, 700), candidate("small", 13.5, 600)),
        before=predicted("small"),
    )
    assert found.candidate == "large"
    assert "predicted was small, but what ran live says otherwise, though not surely" in (
        found.sentence
    )
    surely = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, before=predicted("small"))
    assert "predicted was small, but live it is 1.0" in surely.sentence
    assert "times as good (95%)" in surely.sentence
    assert surely.choice is not None
    assert surely.choice.candidate == "small"


def test_acceptance_needs_no_live_run_of_no_draft() -> None:
    found = confirmed(
        predicted("small", ranking=("small", "large")),
        *(candidate("small", 9, 800), candidate("large", 9, 600)),
        objective=Objective.ACCEPTANCE,
    )
    assert (found.candidate, found.value) == ("small", 0.8)
    assert found.sentence.endswith("; confirmed live.")


def test_a_choice_that_did_not_run_live_is_told_as_predicted() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, candidate("large", None))
    assert (found.candidate, found.value) == ("large", None)
    assert found.choice is not None
    assert found.choice.confirmed is None
    assert found.sentence.endswith("not confirmed live: the server crashed.")


def test_nothing_qualifies_by_prediction() -> None:
    excluded = (Excluded("large", "size_gib 4 is over the limit of 2"),)
    found = confirmed(predicted(None, excluded=excluded, ranking=()), replace(LARGE))
    assert found.candidate is None
    assert found.sentence == "nothing qualifies: large: size_gib 4 is over the limit of 2"
    assert found.excluded == excluded
    assert found.certainty is None
