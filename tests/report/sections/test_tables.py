"""Tables: of candidates and quants, whether the output is the same, warnings, provenance. What they
say of whole records: ``tests/test_kept_records.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from cook.record.record import Candidate, Record
from cook.report.document import Code, Items, Table
from cook.report.sections.tables import (
    FIRST,
    SHOWN,
    candidates,
    candidates_table,
    in_order,
    in_short,
    output,
    provenance,
    to_look_at,
    warnings,
)
from cook.report.show import shown
from tests.report.records import of_name, tables_of


def names(found: Sequence[Candidate]) -> list[str]:
    return [candidate.name for candidate in found]


def test_the_short_table_keeps_what_ran_live_and_each_drafts_best(record: Record) -> None:
    short = ["Q8_0 n_max=4", "Q4_K_M n_max=4", "IQ1_S n_max=4", "no draft"]
    assert names(to_look_at(record)) == short
    more = "left out: 6 more settings of these drafts"
    assert any(row.startswith(more) for row in shown(record).answers)
    sight, folded = tables_of(candidates(record))
    assert [row[0] for row in sight.rows] == short
    assert (sight.strong, folded.title) == (0, "6 more candidates")
    every = [str(row[0]) for row in (*sight.rows, *folded.rows)]
    assert every[4:] == [name for name in names(in_order(record)) if name not in short]
    assert sorted(every) == sorted(names(record.candidates))


def test_one_draft_on_two_engines_is_two(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (2, 4))
    other = [
        replace(c, name=c.name + " @ik", engine="ik", live=None)
        for c in record.candidates
        if c.draft is not None
    ]
    both = replace(record, candidates=(*record.candidates, *other))
    assert names(to_look_at(both)) == ["Q8_0 n_max=4", "Q8_0 n_max=4 @ik", "no draft"]


def test_a_table_without_anything_left_out_does_not_say_so(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (4,))
    assert to_look_at(record) == in_order(record)
    assert not any("more settings" in row for row in shown(record).answers)


def test_the_short_table_fits_a_screen_and_keeps_no_draft(records: ModuleType) -> None:
    record = records.record(tuple(f"Q{i}" for i in range(30)), (4,), predicted=False)
    short = names(in_short(record, to_look_at(record)))
    assert len(short) == SHOWN
    assert {"no draft", record.pick.candidate} < set(short)
    sight, folded = tables_of(candidates(record))
    assert len(sight.rows) == FIRST
    assert len(folded.rows) == len(record.candidates) - FIRST


def test_without_chances_the_table_has_no_column_of_them(record: Record) -> None:
    without = replace(record, pick=replace(record.pick, within={}))
    titles = [
        {title for title, _ in candidates_table(one, one.candidates).columns}
        for one in (record, without)
    ]
    assert titles[0] - titles[1] == {"chance within 1%"}


def test_quants_without_a_score(record: Record) -> None:
    (only,) = tables_of(candidates(replace(record, candidates=())))
    assert [row[0] for row in only.rows] == ["Q8_0", "Q4_K_M", "IQ1_S"]
    assert only.strong is None


def test_replies_are_counted_and_what_was_not_controlled_is_marked(record: Record) -> None:
    row = ("Q8_0 n_max=4", "11/12", "1", "0", "0", "0.040", "57", None)
    assert row in tables_of(output(record))[0].rows
    winner = of_name(record, "Q8_0 n_max=4")
    stopped = replace(winner, output=replace(winner.output, not_controlled="it ended"))
    found = output(replace(record, candidates=(stopped,)))
    assert Items(("Q8_0 n_max=4: not controlled: it ended",), marked=True) in found.blocks


def test_failed_steps_come_before_warnings_and_then_who_could_not_win(records: ModuleType) -> None:
    failed, warned, table = warnings(records.record()).blocks
    assert failed == Items(("quantize X failed: it crashed",), marked=True)
    assert warned == Items(("4 of 20 timings were disturbed",), marked=True)
    assert isinstance(table, Table)
    assert table.rows[0] == ("IQ1_S n_max=16", "too large")
    assert warnings(records.bare()).blocks == ("None.",)


def test_commands_and_the_recipe_are_there_to_be_copied(record: Record) -> None:
    found = {b.title: b.text for b in provenance(record).blocks if isinstance(b, Code)}
    assert found["Commands of the steps"] == "# imatrix (bundled)\nllama-imatrix -m 'a b'"
    assert found["The recipe"].startswith("version: 1")
