"""What a search evaluated: counted once, and within the budget."""

from __future__ import annotations

from cook.search.evaluate import Budget, Ledger
from tests.search.spaces import PROMPTS, Law, space


def ledger(budget: Budget) -> tuple[Ledger, Law]:
    law = Law(space(), [1.0] * len(space().ties))
    return Ledger(law, PROMPTS, budget), law


def test_no_mix_is_evaluated_twice() -> None:
    one, law = ledger(Budget(evaluations=3))
    mix = law.space.largest
    assert one.known(mix) is None
    first = one.replay(mix, "reference", "once")
    assert one.replay(mix, "candidate", "again") is first is one.known(mix)
    assert first.ids == PROMPTS
    assert law.asked == [mix]
    assert one.left == 2
    assert one.entries[mix].why == "once"


def test_a_budget_of_time_is_counted_in_evaluations() -> None:
    one, law = ledger(Budget(seconds=1e6))
    assert one.left == float("inf")
    one.replay(law.space.largest, "reference", "")
    assert 1 < one.left < float("inf")
