"""The lines beside the pick: each answers a question from what the record holds."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.record.measured import NoiseFloor
from cook.record.record import Record
from cook.report.answers import answers, evidence


def told(record: Record) -> dict[str, str]:
    return {fact.label: fact.value for fact in (*evidence(record), *answers(record))}


def test_every_question_has_its_line(records: ModuleType) -> None:
    found = told(records.record())
    assert "12 prompts and 1,000 tokens, live (docstring, prose, class)" in found["measured over"]
    assert "temperature 0" in found["measured over"]
    assert "quiet" in found["machine"]
    assert found["output"].startswith("11 of 12 replies")
    assert "1 part at a near tie" in found["output"]
    assert "32.42 MiB for the draft with its cache" in found["memory"]
    assert "85.83 MiB" in found["memory"]
    assert found["draft length"] == "4"
    assert "Q4_K_M" in found["other drafts"]
    assert "IQ1_S" in found["other drafts"]
    assert "predicted" in found["other drafts"]
    assert found["where it loses"] == "on no category of these prompts"
    assert "7 of 9 settings are predicted only" in found["left out"]


def test_a_disturbed_machine_and_its_noise(records: ModuleType) -> None:
    noise = (NoiseFloor("bundled", 0.07, 3, 0.95, None),)
    found = told(replace(records.record(), disturbed=3, noise=noise))
    assert "disturbed: other programs ran during 3 timings" in found["machine"]
    assert "differ by up to 7.0%" in found["machine"]
    assert found["draft length"] == "4; within the noise also 2"


def test_without_a_score_nothing_is_said(records: ModuleType) -> None:
    assert told(records.bare()) == {}


def test_no_draft_as_the_pick_still_tells_what_was_tried(records: ModuleType) -> None:
    record = records.record()
    found = told(replace(record, pick=replace(record.pick, candidate="no draft")))
    assert "output" not in found
    assert "Q8_0" in found["other drafts"]
