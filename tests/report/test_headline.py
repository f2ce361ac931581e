"""The first screen, and the lines next to the pick: each answers a question from the record."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from cook.record.record import Record
from cook.report.document import Headline
from cook.report.headline import headline, lengths_that_would_do


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


def lines(record: Record) -> dict[str, str]:
    found = headline(record)
    return {fact.label: fact.value for fact in (*found.evidence, *found.answers)}


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


def test_lengths_that_would_do_are_by_the_chance_to_be_within_the_margin(
    records: ModuleType,
) -> None:
    record = records.record()
    winner = record.candidate(record.pick.candidate)
    assert lengths_that_would_do(record, winner) == ()
    near = {**record.pick.within, "Q8_0 n_max=2": 0.06, "Q4_K_M n_max=2": 0.9}
    record = replace(record, pick=replace(record.pick, within=near))
    assert lengths_that_would_do(record, winner) == (2,)
