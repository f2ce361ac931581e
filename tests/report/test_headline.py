"""The first screen."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.record.record import Choice
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


def test_a_smaller_file_not_told_from_the_best_is_a_tie(records: ModuleType) -> None:
    record = records.record()
    choice = Choice("Q8_0 n_max=4", 18, 0.0, 0.1, 0.01, False, ("B",), True, best="B")
    found = headline(replace(record, pick=replace(record.pick, choice=choice)))
    assert fact(found, "confidence") == (
        "a tie",
        "by prediction not told from B, the best, at 95%",
    )


def test_confidence_from_the_choice_before_all(records: ModuleType) -> None:
    record = records.record()
    choice = Choice("Q8_0 n_max=4", 18, 0.91, 0.004, 0.02, True, ("B",), None)
    pick = replace(record.pick, choice=choice)
    value, note = fact(headline(replace(record, pick=pick)), "confidence")
    assert value == "91%"
    assert "a rival may gain 0.4%" in note
    assert "level with B" in note


def test_a_forecast_that_live_runs_overrule_lends_no_confidence(records: ModuleType) -> None:
    record = records.record()
    choice = Choice("no draft", 18, 0.999, 0.0, 0.02, True, (), False)
    found = headline(replace(record, pick=replace(record.pick, choice=choice)))
    value, note = fact(found, "confidence")
    assert value == "95%"
    assert note == "by live runs, which overrule the forecast: no draft"


@pytest.mark.parametrize(("ties", "value"), [((), "95%"), (("no draft",), "a tie")])
def test_confidence_of_live_runs(records: ModuleType, ties: tuple[str, ...], value: str) -> None:
    record = records.record(predicted=False)
    found = headline(replace(record, pick=replace(record.pick, ties=ties)))
    assert fact(found, "confidence")[0] == value


def test_too_few_prompts_lend_no_confidence(records: ModuleType) -> None:
    record = records.record(predicted=False)
    few = [
        replace(c, live=replace(c.live, requests=7) if c.live else None) for c in record.candidates
    ]
    found = headline(replace(record, candidates=tuple(few)))
    assert fact(found, "confidence") == ("unknown", "7 prompts; 8 are needed")
    assert ", 7 prompts" in fact(found, "end-to-end speedup")[1]


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
