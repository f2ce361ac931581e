"""The tables of a record."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.record.record import Candidate
from cook.report.show import shown
from cook.report.table import columns, in_order, row, to_look_at


def names(found: list[Candidate]) -> list[str]:
    return [candidate.name for candidate in found]


def test_every_candidate_has_a_row_the_pick_first_then_by_prediction(records: ModuleType) -> None:
    record = records.record()
    found = in_order(record)
    assert names(found)[:2] == ["Q8_0 n_max=4", "no draft"]
    assert sorted(names(found)) == sorted(c.name for c in record.candidates)
    assert [(line[0] or "")[:2] for line in shown(record).rows[:2]] == ["* ", "  "]
    heads = [title for title, _ in columns(record)]
    guesses = [float(row(record, c)[heads.index("predicted t/s")] or "nan") for c in found[2:]]
    assert guesses == sorted(guesses, reverse=True)


def test_the_short_table_keeps_what_ran_live_and_each_drafts_best(records: ModuleType) -> None:
    record = records.record()
    short = names(to_look_at(record))
    assert short == ["Q8_0 n_max=4", "no draft", "Q4_K_M n_max=4", "IQ1_S n_max=4"]
    live = {c.name for c in record.candidates if c.live is not None}
    assert live <= set(short)
    note = f"{len(record.candidates) - len(short)} more settings of these drafts are in the record"
    assert any(told.startswith(note) for told in shown(record).notes)


def test_one_draft_on_two_engines_is_two(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (2, 4))
    other = [
        replace(c, name=c.name + " @ik", engine="ik", live=None)
        for c in record.candidates
        if c.draft is not None
    ]
    both = replace(record, candidates=record.candidates + tuple(other))
    assert names(to_look_at(both)) == ["Q8_0 n_max=4", "no draft", "Q8_0 n_max=4 @ik"]


def test_a_table_without_anything_left_out_does_not_say_so(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (4,))
    assert to_look_at(record) == in_order(record)
    assert not any("more settings" in note for note in shown(record).notes)
