"""The first screen."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cook.record.record import Certainty
from cook.report.document import Headline
from cook.report.headline import headline


def fact(found: Headline, label: str) -> tuple[str, str]:
    return next((f.value, f.note) for f in found.facts if f.label == label)


def test_figures_of_the_pick(records: ModuleType) -> None:
    found = headline(records.record())
    assert found.title == "Q8_0 n_max=4"
    assert fact(found, "acceptance") == ("80.0%", "762/952, 4.20 tokens a cycle")
    assert fact(found, "candidates") == ("10", "3 live, 10 predicted")
    assert found.command == "llama-server -m target.gguf"
    assert found.warnings == 2


def certain(records: ModuleType, **changes: Any) -> tuple[str, str]:
    """What is said of the confidence of a pick of this certainty."""
    sure = Certainty(True, 0.01, 0.97, 0.9, "Q8_0 n_max=4")
    record = records.record()
    pick = replace(record.pick, ties=("B",), certainty=replace(sure, **changes))
    return fact(headline(replace(record, pick=pick)), "confidence")


def test_confidence_is_the_chance_of_being_within_the_margin(records: ModuleType) -> None:
    assert certain(records) == ("97%", "chance of being within 1% of the best")
    assert certain(records, within=0.9951, margin=0.005)[0] == ">99%"
    assert certain(records, leader="B")[1] == (
        "chance of being within 1% of the best, which is expected to be B"
    )
    assert certain(records, objection="no rival ran")[1].endswith("; live runs do not confirm it")


@pytest.mark.parametrize("within", [0.2, 0.6, 0.999])
def test_what_is_not_decided_is_called_undecided(records: ModuleType, within: float) -> None:
    value, note = certain(records, decided=False, within=within)
    assert value == "undecided"
    assert note.endswith("chance of being within 1% of the best; B may be better")


@pytest.mark.parametrize("cause", ["disturbed", "not as forecast"])
def test_doubtful_runs_make_nobody_sure(records: ModuleType, cause: str) -> None:
    value, note = certain(records, within=0.9999, objection=f"{cause} (no draft: why)")
    assert value == "not confirmed"
    assert note.endswith(f"live {cause}")


def test_too_little_to_say_is_undecided(records: ModuleType) -> None:
    assert certain(records, within=None, decided=False)[0] == "undecided"


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
