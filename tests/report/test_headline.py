"""The first screen, and the lines next to the pick, where records of real runs say nothing else.
What those say: ``tests/test_kept_records.py``."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cook.record.record import Record
from cook.report.headline import headline, lengths_that_would_do, printed_answers
from tests.report.records import undecided


def lines(record: Record) -> dict[str, str]:
    found = headline(record)
    return {fact.label: fact.value for fact in (*found.evidence, *found.answers)}


def picking(record: Record, **changes: Any) -> Record:
    return replace(record, pick=replace(record.pick, **changes))


NONE: dict[str, Any] = {"rival": None, "rival_low": None, "rival_high": None}


@pytest.mark.parametrize(
    ("changes", "value", "note"),
    [
        ({}, "Decided", "95%: nothing is more than 1% better; the nearest is Q8_0 n_max=2"),
        (NONE, "Decided", "95%: nothing is more than 1% better"),
        ({"leader": "B"}, "Decided", "95%: within 1% of B, the best"),
        ({"decided": False, **NONE}, "Undecided", "too little was measured"),
        (
            {"decided": False, "rival_low": 0.985, "rival_high": 1.031, "seconds_to_decide": 400.0},
            "Undecided",
            "Q8_0 n_max=2: -1.5% to +3.1% of Q8_0 n_max=4 (95%); about 7 minutes more would decide",
        ),
    ],
)
def test_how_sure_the_pick_is(
    record: Record, changes: dict[str, Any], value: str, note: str
) -> None:
    facts = {fact.label: fact for fact in headline(picking(record, **changes)).facts}
    assert (facts["confidence"].value, facts["confidence"].note) == (value, note)


def test_no_draft_can_win(record: Record) -> None:
    found = headline(picking(record, candidate="no draft"))
    assert found.title == "No draft"
    labels = {fact.label for fact in found.facts}
    assert not {"end-to-end speedup", "acceptance", "draft file"} & labels
    fastest = next(fact for fact in found.facts if fact.label == "fastest draft")
    assert fastest.value == "1.80x"
    assert fastest.note == "Q8_0 n_max=4, decode speedup over no draft"
    answers = {fact.label: fact.value for fact in found.answers}
    assert "output" not in answers
    assert "Q8_0" in answers["other drafts"], "what was tried"


def test_the_fastest_draft_is_one_that_ran_or_is_said_to_be_predicted(record: Record) -> None:
    """N-grams are no draft, and a forecast is not put before what was measured."""

    def fastest(found: Record) -> Any:
        facts = headline(picking(found, candidate="no draft")).facts
        return next(fact for fact in facts if fact.label == "fastest draft")

    ran = next(c for c in record.candidates if c.name == "Q8_0 n_max=4")
    others = [c for c in record.candidates if c is not ran]
    assert ran.predicted is not None
    faster = replace(ran, name="Q8_0 n_max=9", live=None, prompts=None, predicted=ran.predicted)
    assert "n_max=9" not in fastest(replace(record, candidates=(*others, ran, faster))).note
    bare = [c for c in others if c.draft is None]
    assert fastest(replace(record, candidates=(*bare, faster))).note.endswith(", predicted")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("cook", "build", "mine"), "run it: cook serve demo"),
        (("cook", "build", "--engine", "ik"), "run it: cook serve demo"),
        (
            ("cook", "build", "--engine=ik=/my engines/ik", "--allow-unsafe-args"),
            "run it: cook serve demo --allow-unsafe-args --engine 'ik=/my engines/ik'",
        ),
    ],
)
def test_how_to_run_it_says_again_what_no_record_holds(
    record: Record, command: tuple[str, ...], line: str
) -> None:
    named = replace(record, recipe="demo", command=command)
    assert [*printed_answers(named, 1)][-1] == line


def test_nothing_qualifies(records: ModuleType, record: Record) -> None:
    found = headline(picking(record, candidate=None, sentence="nothing qualifies: too large"))
    assert (found.title, found.why) == ("Nothing qualifies", "nothing qualifies: too large")
    assert found.command is None
    assert found.warnings == 2
    assert headline(records.bare()).title == "3 quants"
    assert lines(records.bare()) == {}


def test_the_state_of_the_machine_and_how_its_servers_ran(record: Record) -> None:
    disturbed = lines(replace(record, disturbed=3, together=False))["machine"]
    assert "disturbed: other programs ran during 3 timings; servers in turns" in disturbed


def test_memory_on_devices_and_another_candidate_s_output(record: Record) -> None:
    assert lines(record)["output"].endswith("without a draft; 1 part at a near tie")
    on_device = tuple(replace(d, device_bytes=(d.memory_bytes or 0) // 2) for d in record.drafts)
    silent = tuple(
        replace(c, output=None) if c.name == record.pick.candidate else c for c in record.candidates
    )
    found = lines(replace(record, drafts=on_device, candidates=silent))
    assert "the draft takes 32.42 MiB, 16.21 MiB of it on devices" in found["memory"]
    assert found["output"].startswith("11 of 12 replies of Q4_K_M n_max=4 are token for token")


def test_lengths_that_would_do_are_by_the_chance_to_be_within_the_margin(record: Record) -> None:
    assert lines(undecided(record))["draft length"] == "4; 2, 8 may also be within 1% of the best"
    winner = record.candidate(record.pick.candidate or "")
    assert winner is not None
    assert lengths_that_would_do(record, winner) == ()
    near = {**record.pick.within, "Q8_0 n_max=2": 0.06, "Q4_K_M n_max=2": 0.9}
    assert lengths_that_would_do(picking(record, within=near), winner) == (2,)
