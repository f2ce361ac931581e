"""What is said of a pick, and that it contradicts no row of its table."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from cook.engines.base import DraftSettings
from cook.engines.speculation import NgramSettings, NgramType
from cook.job.sentence import nothing_qualifies, pick_sentence
from cook.record.record import Candidate, Excluded, Figures, Interval, Objective, Pick, Prediction
from tests.bare_records import CANDIDATE


def figures(speed: float, drafted: int | None = None) -> Figures:
    """Of 10 requests and 1,000 tokens; 7 of 10 drafted tokens are accepted."""
    accepted = None if drafted is None else drafted * 7 // 10
    cycles = None if accepted is None else 1000 - accepted
    wall_ms = 1e6 / speed
    return Figures(*(10, 50, 1000, wall_ms, wall_ms, drafted, accepted, cycles, 2 * speed, speed))


def candidate(draft: str | None, speed: float, speedup: float | None = None) -> Candidate:
    """Live at ``speed``; a draft with an interval of its speedup."""
    if draft is None:
        return replace(CANDIDATE, live=figures(speed), speedup=1.0, decode_speedup=1.0)
    return replace(
        CANDIDATE,
        name=draft,
        draft=draft,
        settings=DraftSettings(4),
        live=figures(speed, 600),
        speedup=speedup,
        speedup_interval=Interval(speedup - 0.1, speedup + 0.1, 0.95, "x") if speedup else None,
        decode_speedup=speedup + 0.2 if speedup else None,
    )


NO_DRAFT = candidate(None, 10)
LARGE, SMALL = candidate("large", 13, 1.3), candidate("small", 12.9, 1.29)
SLOW = candidate("slow", 10.5, 1.05)
SAID = Prediction(figures(12, 600), 1.0, 0.0, 0.0, 0.0, speedup=1.2, decode_speedup=1.3)
UNRUN = replace(
    candidate("unrun", 1), live=None, speedup=None, speedup_interval=None, predicted=SAID
)
RIVAL = replace(candidate("ngram-mod", 15, 1.5), settings=None, ngram=NgramSettings(NgramType.MOD))
DECIDED = Pick(
    "large", "", "end_to_end_speed", 0.95, 0.01, 13.0, (), (), decided=True, leader="large"
)
OPEN = replace(DECIDED, decided=False, rival="small", rival_low=0.985, rival_high=1.02)


def say(
    pick: Pick = DECIDED,
    winner: Candidate = LARGE,
    *others: Candidate,
    objective: Objective = Objective.END_TO_END_SPEED,
    disturbed: float = 0.0,
    **changes: Any,
) -> str:
    asked = replace(pick, candidate=winner.name, maximize=objective.value, leader=winner.name)
    return pick_sentence(
        replace(asked, **changes), winner, (winner, *(others or (NO_DRAFT, SMALL))), disturbed
    )


OVER = "over 10 requests, 1,000 tokens"
RATE = "acceptance 70.0%"
SURE = "Decided (95%): no other candidate is more than 1 % faster."


def gain(name: str, times: float) -> str:
    between = f"{times - 0.1:.2f} to {times + 0.1:.2f} on other such prompts"
    return f"{name} is {times:.2f}x as fast as no draft end to end ({between}), {OVER}, {RATE}"


ALSO = "1.30x end to end (1.20 to 1.40 on other such prompts)"
UNSCORED = replace(LARGE, speedup=None, speedup_interval=None, decode_speedup=None)
FORMS: dict[str, tuple[str, str]] = {
    "decided": (say(), f"{gain('large', 1.3)}. {SURE}"),
    "may not pay elsewhere": (
        say(winner=SLOW),
        f"{gain('slow', 1.05)}. {SURE.replace('Decided', 'Decided on these prompts')}",
    ),
    "the smaller file": (
        say(winner=SMALL, leader="large"),
        f"{gain('small', 1.29)}. Decided: it is within 1 % of large, the best (95%), and is the "
        "smaller file.",
    ),
    "no file": (
        say(DECIDED, RIVAL, NO_DRAFT, LARGE, leader="large"),
        f"{gain('ngram-mod', 1.5)}; the fastest draft, large, is 1.30x as fast as no draft. "
        "Decided: it is within 1 % of large, the best (95%), and needs no file.",
    ),
    "no draft": (
        say(DECIDED, NO_DRAFT, SLOW),
        f"No draft is the fastest, at 10.00 t/s end to end, {OVER}; the fastest draft, slow, is "
        f"1.05x as fast as no draft. {SURE}",
    ),
    "no draft, by decoding": (
        say(DECIDED, NO_DRAFT, objective=Objective.DECODE_SPEED),
        f"No draft is the fastest, at 20.00 t/s decode, {OVER}; the fastest draft, small, is "
        f"1.29x as fast as no draft. {SURE}",
    ),
    "undecided, with minutes": (
        say(OPEN, seconds_to_decide=200.0),
        f"{gain('large', 1.3)}. Undecided: small is -1.5% to +2.0% faster than large (95%). About "
        "3 more minutes of live runs would decide: raise score.live_budget.",
    ),
    "undecided, by a forecast": (
        say(OPEN, LARGE, NO_DRAFT, UNRUN, rival="unrun"),
        f"{gain('large', 1.3)}. Undecided: unrun is by its forecast, as it did not run, -1.5% to "
        "+2.0% faster than large (95%). More prompts would decide (score.limit), or a wider "
        "pick.margin.",
    ),
    "undecided, of no pair": (
        say(OPEN, rival=None, rival_low=None, rival_high=None),
        f"{gain('large', 1.3)}. Which candidate is best is undecided: too little was measured.",
    ),
    "acceptance": (
        say(objective=Objective.ACCEPTANCE),
        f"large has 70.0% of its drafted tokens accepted, {ALSO}, {OVER}. "
        f"{SURE.replace('faster', 'better')}",
    ),
    "acceptance length": (
        say(objective=Objective.ACCEPTANCE_LENGTH),
        f"large comes to 1.72 tokens a cycle, {ALSO}, {OVER}, {RATE}. "
        f"{SURE.replace('faster', 'better')}",
    ),
    "decoding": (
        say(objective=Objective.DECODE_SPEED),
        f"large decodes 1.50x as fast as no draft, {ALSO}, {OVER}, {RATE}. {SURE}",
    ),
    "no draft did not run": (
        say(winner=UNSCORED),
        f"large runs at 13.00 t/s end to end, {OVER}, {RATE}. {SURE}",
    ),
    "nothing ran": (
        say(winner=UNRUN),
        f"unrun is 1.20x as fast as no draft end to end, {OVER}, by forecast alone, {RATE}. {SURE}",
    ),
    "the only one": (
        say(winner=replace(UNRUN, predicted=None)),
        f"unrun is the only candidate. {SURE}",
    ),
    "disturbed": (
        say(disturbed=0.25),
        f"{gain('large', 1.3)}. {SURE} Other programs were at work during 25% of the live "
        "requests: on an idle machine `cook build --remeasure` or `cook score --fresh` is surer.",
    ),
    "a little disturbed": (say(disturbed=0.1), f"{gain('large', 1.3)}. {SURE}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_said_names_the_pick_and_brackets_two_numbers_at_most(form: str) -> None:
    said, wanted = FORMS[form]
    assert said == wanted
    assert said.startswith(("large ", "small ", "slow ", "unrun ", "ngram-mod ", "No draft "))
    for bracket in re.findall(r"\(([^()]*)\)", said):
        assert len(re.findall(r"\d+(?:\.\d+)?", bracket)) <= 2


def test_nothing_qualifies_says_why() -> None:
    said = nothing_qualifies([Excluded("large", "too large")])
    assert said == "nothing qualifies: large: too large"
