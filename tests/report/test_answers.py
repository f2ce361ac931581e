"""The lines next to the pick: each answers a question from what the record holds."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.record.record import Record
from cook.report.answers import answers, evidence


def lines(record: Record) -> dict[str, str]:
    return {fact.label: fact.value for fact in (*evidence(record), *answers(record))}


def test_every_question_has_its_line(records: ModuleType) -> None:
    found = lines(records.record())
    assert "24 requests and 2,196 tokens, live (docstring, prose, class)" in found["measured over"]
    assert "temperature 0" in found["measured over"]
    assert "quiet" in found["machine"]
    assert found["output"].startswith("11 of 12 replies")
    assert "1 part at a near tie" in found["output"]
    assert "the draft takes 32.42 MiB" in found["memory"]
    assert "85.83 MiB" in found["memory"]
    assert found["draft length"] == "4; no other length is within 1% of the best"
    assert "Q4_K_M" in found["other drafts"]
    assert "IQ1_S" in found["other drafts"]
    assert "predicted" in found["other drafts"]
    assert found["where it loses"] == "on no category of these prompts"
    assert "7 of 9 settings are predicted only" in found["left out"]


def test_a_disturbed_machine_and_how_its_servers_ran(records: ModuleType) -> None:
    record = replace(records.record(), disturbed=3)
    found = lines(record)
    assert "disturbed: other programs ran during 3 timings" in found["machine"]
    assert "servers alive at once" in found["machine"]
    assert "two starts of one server differ by about 1.1%" in found["machine"]
    assert "servers in turns" in lines(replace(record, together=False))["machine"]


def test_lengths_that_may_be_as_good_are_named(records: ModuleType) -> None:
    found = lines(records.undecided(records.record()))
    assert found["draft length"] == "4; 2, 8 may also be within 1% of the best"


def test_without_a_score_nothing_is_said(records: ModuleType) -> None:
    assert lines(records.bare()) == {}


def test_no_draft_as_the_pick_still_tells_what_was_tried(records: ModuleType) -> None:
    record = records.record()
    found = lines(replace(record, pick=replace(record.pick, candidate="no draft")))
    assert "output" not in found
    assert "Q8_0" in found["other drafts"]


def test_memory_on_devices_is_named_and_another_candidate_s_output_is_told(
    records: ModuleType,
) -> None:
    record = records.record()
    on_device = tuple(replace(d, device_bytes=d.memory_bytes // 2) for d in record.drafts)
    silent = tuple(
        replace(c, output=None) if c.name == record.pick.candidate else c for c in record.candidates
    )
    found = lines(replace(record, drafts=on_device, candidates=silent))
    assert "16.21 MiB of it on devices" in found["memory"]
    assert found["output"].startswith("11 of 12 replies of Q4_K_M n_max=4 are token for token")
