"""What a search evaluated: counted once, and within the budget."""

from __future__ import annotations

from cook.search.evaluate import Budget, Ledger
from tests.search.spaces import PROMPTS, Law, space


def test_no_mix_is_evaluated_twice() -> None:
    law = Law(space(), [1.0] * len(space().ties))
    ledger, mix = Ledger(law, PROMPTS, Budget(evaluations=3)), law.space.largest
    assert ledger.known(mix) is None
    first = ledger.replay(mix, "reference", "once")
    assert ledger.replay(mix, "candidate", "again") is first is ledger.known(mix)
    assert first.ids == PROMPTS
    assert law.asked == [mix]
    assert ledger.left == 2
    assert ledger.entries[mix].why == "once"


def test_a_budget_of_time_is_counted_in_evaluations() -> None:
    law = Law(space(), [1.0] * len(space().ties))
    ledger = Ledger(law, PROMPTS, Budget(seconds=1e6))
    assert ledger.left == float("inf")
    ledger.replay(law.space.largest, "reference", "")
    assert 1 < ledger.left < float("inf")
