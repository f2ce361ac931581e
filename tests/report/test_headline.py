"""The first screen."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from cook.report.document import Headline
from cook.report.headline import headline


def fact(found: Headline, label: str) -> tuple[str, str]:
    return next((f.value, f.note) for f in found.facts if f.label == label)


def test_figures_of_the_pick(records: ModuleType) -> None:
    found = headline(records.record())
    assert found.title == "Q8_0 n_max=4"
    assert fact(found, "acceptance") == ("80.0%", "1673/2092, 4.20 tokens a cycle")
    assert fact(found, "candidates") == ("10", "3 live, 10 predicted")
    assert found.command == "llama-server -m target.gguf"
    assert found.warnings == 2


def confidence(records: ModuleType, **changes: Any) -> tuple[str, str]:
    """What is said of the confidence of a pick with these changes."""
    record = records.record()
    return fact(headline(replace(record, pick=replace(record.pick, **changes))), "confidence")


def test_decided_says_by_how_much_nothing_is_better(records: ModuleType) -> None:
    value, note = confidence(records)
    assert value == "Decided"
    assert note == "95%: nothing is more than 1% better; the nearest is Q8_0 n_max=2"
    assert confidence(records, rival=None)[1] == "95%: nothing is more than 1% better"


def test_a_smaller_file_than_the_best_says_so(records: ModuleType) -> None:
    assert confidence(records, leader="B") == ("Decided", "95%: within 1% of B, the best")


def test_undecided_names_the_pair_its_difference_and_the_minutes(records: ModuleType) -> None:
    assert fact(headline(records.undecided(records.record())), "confidence") == (
        "Undecided",
        "Q8_0 n_max=2: -1.5% to +3.1% of Q8_0 n_max=4 (95%); about 7 minutes more would decide",
    )


def test_too_little_to_say_is_undecided(records: ModuleType) -> None:
    found = confidence(records, decided=False, rival=None, rival_low=None, rival_high=None)
    assert found == ("Undecided", "too little was measured")


def test_no_draft_can_win(records: ModuleType) -> None:
    record = records.record()
    found = headline(replace(record, pick=replace(record.pick, candidate="no draft")))
    assert found.title == "No draft"
    assert {"end-to-end speedup", "acceptance", "draft file"}.isdisjoint(
        f.label for f in found.facts
    )


def test_nothing_qualifies(records: ModuleType) -> None:
    record = records.record()
    pick = replace(record.pick, candidate=None, sentence="nothing qualifies: too large")
    found = headline(replace(record, pick=pick))
    assert (found.title, found.why) == ("Nothing qualifies", "nothing qualifies: too large")
    assert found.command is None
    assert headline(records.bare()).title == "3 quants"
