"""The final choice beside what was predicted of it, and what the live runs say to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cook.build.choose import Aim, Chosen, DecidingCost, confirm
from cook.engines.ngram_settings import NgramSettings, NgramType
from cook.record.objective import Objective
from cook.record.outcomes import SelfCheckOutcome
from cook.record.record import DISTURBED, UNFORESEEN, Candidate, CandidateKey, Doubt, Excluded, Pick
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
    doubts: Mapping[CandidateKey, Doubt] | None = None,
    cost: DecidingCost | None = None,
) -> Pick:
    """``choice`` at the end, which was also ``before`` the live runs unless that is given."""
    return confirm(
        before or choice,
        choice,
        candidates,
        aim=Aim(objective),
        live=rounds(*candidates, objective=objective, noise=noise),
        doubts=doubts or {},
        cost=cost,
    )


NO_DRAFT = candidate(None, 10)
LARGE, SMALL = candidate("large", 13, 700), candidate("small", 12, 600)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (SelfCheckOutcome(6, 6, 40, 30, 40, 30), None),
        (SelfCheckOutcome(6, 5, 40, 30, 41, 30), "as simulated on 5 of 6 live requests"),
        (None, "could not be checked"),
    ],
)
def test_a_rival_is_confirmed_by_its_counts(
    counts: SelfCheckOutcome | None, told: str | None
) -> None:
    """However slow it was live: that hangs on what its server saw before."""
    ngram = NgramSettings(NgramType.MOD)
    rival = replace(
        candidate("ngram-mod", 5, 600), settings=None, cache_type=None, ngram=ngram, counts=counts
    )
    choice = predicted("small")
    names = {**choice.names, rival.key: rival.name}
    choice = replace(choice, key=rival.key, ranking=(rival.key, *choice.ranking), names=names)
    choice = replace(choice, chance={**choice.chance, rival.key: 0.97})
    found = confirmed(choice, NO_DRAFT, LARGE, rival)
    assert found.candidate == "ngram-mod"
    assert found.certainty is not None
    assert found.choice is not None
    assert found.choice.confirmed is (told is None)
    assert (told or "") in (found.certainty.objection or "")


def test_no_live_speed_of_a_rival_says_anything() -> None:
    """Neither against a draft, however fast it was, nor as the other draft that must run."""
    rival = replace(
        candidate("ngram-mod", 40, 600),
        settings=None,
        cache_type=None,
        ngram=NgramSettings(NgramType.MOD),
    )
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, rival)
    assert found.choice is not None
    assert found.choice.confirmed
    alone = confirmed(predicted("large"), NO_DRAFT, LARGE, rival)
    assert alone.certainty is not None
    assert alone.certainty.objection == "no rival ran"


def test_a_choice_that_the_live_runs_bear_out_is_confirmed() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL)
    assert (found.candidate, found.value, found.ties) == ("large", 13, ())
    assert found.choice is not None
    assert (found.choice.confirmed, found.choice.decided, found.choice.prompts) == (True, True, 30)
    assert found.sentence == (
        "large is 1.30x as fast as no draft end to end, live on 10 prompts, 1,000 tokens, "
        "acceptance 70.0%. No other candidate is more than 1% better (95%)."
    )
    assert found.certainty is not None
    assert (found.certainty.decided, found.certainty.objection) == (True, None)


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        ((LARGE, SMALL), "nothing ran without a draft"),
        ((NO_DRAFT, LARGE), "no rival ran"),
    ],
)
def test_without_rival_or_no_draft_nothing_is_confirmed(
    ran: tuple[Candidate, ...], why: str
) -> None:
    found = confirmed(predicted("large"), *ran)
    assert found.sentence.endswith(f" The live runs alone do not show it: {why}.")
    assert found.certainty is not None
    assert found.certainty.objection == why


def test_live_runs_that_tell_nothing_confirm_nothing() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, noise=0.1)
    assert "The live runs alone do not show it: it ran at " in found.sentence
    assert found.sentence.endswith(" (95%).")


def test_disturbed_runs_confirm_nothing() -> None:
    doubts = {
        KEYS["large"]: Doubt(UNFORESEEN, "it took 1.40 times the time that was forecast"),
        KEYS["no draft"]: Doubt(DISTURBED, "other programs kept 1.3 cores busy"),
    }
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, doubts=doubts)
    assert found.sentence.endswith(
        "Live runs were disturbed (no draft: other programs kept 1.3 cores busy): measure again "
        "on an idle machine (`--fresh`) before you trust these speeds."
    )


def test_a_smaller_file_says_of_whom_it_takes_the_place() -> None:
    found = confirmed(predicted("small"), NO_DRAFT, LARGE, candidate("small", 12.97, 600))
    assert found.candidate == "small"
    assert found.choice is not None
    assert found.choice.best == "large"
    assert found.sentence.endswith(
        "It ties with large, the best expected, within 1% (95%), and is the smaller file."
    )


def test_an_undecided_choice_says_so_and_what_deciding_costs() -> None:
    choice = predicted("large", margin=0.034, decided=False, chance=0.4, ties=("small", "no draft"))
    found = confirmed(choice, NO_DRAFT, LARGE, SMALL, cost=DecidingCost(6, 500.0))
    assert found.sentence.partition(". ")[2] == (
        "Which candidate is best is undecided: it is expected to be best, but small and no draft "
        "may be up to 3% better (95%; margin 1%). About 6 more live rounds would decide: raise "
        "score.live_budget by 8 minutes."
    )
    kept = found.certainty
    assert kept is not None
    assert (kept.decided, kept.within, kept.rounds_to_decide) == (False, 0.4, 6)
    few = confirmed(predicted("large", margin=None), NO_DRAFT, LARGE, SMALL)
    assert "Which candidate is best is undecided." in few.sentence


def test_a_prediction_that_did_not_stand_is_kept_beside_the_choice() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, LARGE, SMALL, before=predicted("small"))
    assert found.candidate == "large"
    assert found.choice is not None
    assert found.choice.candidate == "small"


def test_acceptance_needs_no_live_run_of_no_draft() -> None:
    found = confirmed(
        predicted("small", ranking=("small", "large")),
        *(candidate("small", 9, 800), candidate("large", 9, 600)),
        objective=Objective.ACCEPTANCE,
    )
    assert (found.candidate, found.value) == ("small", 0.8)
    assert found.sentence.startswith("small has 80.0% of its drafted tokens accepted, live on 10 ")
    assert "do not show it" not in found.sentence


def test_a_choice_that_did_not_run_live_is_told_as_predicted() -> None:
    found = confirmed(predicted("large"), NO_DRAFT, candidate("large", None))
    assert (found.candidate, found.value) == ("large", None)
    assert found.choice is not None
    assert found.choice.confirmed is None
    assert found.sentence.startswith("large is expected to be best; it did not run live.")
    assert found.sentence.endswith("The live runs alone do not show it: the server crashed.")


def test_nothing_qualifies_by_prediction() -> None:
    excluded = (Excluded("large", "size_gib 4 is over the limit of 2"),)
    found = confirmed(predicted(None, excluded=excluded, ranking=()), replace(LARGE))
    assert found.candidate is None
    assert found.sentence == "nothing qualifies: large: size_gib 4 is over the limit of 2"
    assert found.excluded == excluded
    assert found.certainty is None
