"""What a search was told: counted once, within the budget, and raced in rounds."""

from __future__ import annotations

import pytest

from cook.scoring.racing import RaceRules
from cook.search.ledger import Budget, Ledger, lead_scores
from tests.search.spaces import PROMPTS, ROUNDS, Law, space

RULES = RaceRules(rounds=3, delta=0.05)


def ledger(budget: Budget | None = None, noise: float = 0.0) -> Ledger:
    model = space()
    law = Law(model, [1.0] * (len(model.ties) - 1) + [0.0], noise=noise)
    return Ledger(law, ROUNDS, budget or Budget())


def test_nothing_is_asked_twice() -> None:
    one = ledger()
    law = one.evaluator
    assert isinstance(law, Law)
    mix = law.space.largest
    first = one.whole([mix], "reference", "once")
    assert one.whole([mix, mix], "candidate", "again")[1] is first[0]
    assert law.asked == [(mix, PROMPTS)]
    assert one.spent == 1
    assert one.entries[mix].why == "once"


def test_a_hopeless_mix_leaves_after_the_first_round_and_costs_its_share() -> None:
    one = ledger(noise=0.002)
    law = one.evaluator
    assert isinstance(law, Law)
    lead = law.space.largest
    worst = tuple(types[0] for types in law.space.types)
    near = law.space.changed(lead, law.space.spans()[-1], "q4_K")
    one.whole([lead], "reference", "")
    finished = one.race([worst, near], lead, RULES, "repair", "a change")
    assert finished == [near]
    assert one.spent == pytest.approx(2 + 6 / 24)
    assert one.entries[worst].dropped == "behind after 6 of 24 prompts"
    assert worst not in one.known
    assert one.known[near].ids == PROMPTS


def test_a_race_ends_with_the_budget() -> None:
    one = ledger(Budget(evaluations=1.3))
    law = one.evaluator
    assert isinstance(law, Law)
    lead = law.space.largest
    one.whole([lead], "reference", "")
    spans = law.space.spans()
    one.race([law.space.changed(lead, s, "q4_K") for s in spans], lead, RULES, "repair", "")
    assert one.spent <= 1.3
    assert one.left < 6 / 24


def test_a_budget_of_time_is_told_in_evaluations() -> None:
    one = ledger(Budget(seconds=1e6))
    assert one.left == float("inf")
    law = one.evaluator
    assert isinstance(law, Law)
    one.whole([law.space.largest], "reference", "")
    assert 1 < one.left < float("inf")


def test_scores_are_what_a_mix_is_behind_the_first() -> None:
    law = Law(space(), [40.0] * len(space().ties))
    worse = tuple(types[1] for types in law.space.types)
    field = law([law.space.largest, worse], PROMPTS)
    scores = lead_scores(field, [1.0, 1.0])
    assert scores[0].mean() == pytest.approx(0, abs=1e-12)
    lost = 1 - field[0].acceptance_length * field[1].cycles.sum() / field[1].tokens.sum()
    assert scores[1].mean() == pytest.approx(lost)
