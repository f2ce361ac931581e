"""Sections that are tables: whether the output is the same, warnings, provenance."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Code, Items, Table, Text
from cook.report.sections.tables import output, provenance, warnings


def test_replies_are_counted_and_what_was_not_controlled_is_marked(records: ModuleType) -> None:
    record = records.record()
    (table,) = output(record).blocks
    assert isinstance(table, Table)
    assert ("Q8_0 n_max=4", "11/12", "1", "0", "0", "0.040", "57", None) in table.rows
    winner = record.candidate("Q8_0 n_max=4")
    stopped = replace(winner, output=replace(winner.output, not_controlled="it ended"))
    found = output(replace(record, candidates=(stopped,)))
    assert Items(("Q8_0 n_max=4: not controlled: it ended",), marked=True) in found.blocks


def test_failed_steps_come_before_warnings_and_then_who_could_not_win(records: ModuleType) -> None:
    failed, warned, table = warnings(records.record()).blocks
    assert failed == Items(("quantize X failed: it crashed",), marked=True)
    assert warned == Items(("4 of 20 timings were disturbed",), marked=True)
    assert isinstance(table, Table)
    assert table.rows[0] == ("IQ1_S n_max=16", "too large")
    assert warnings(records.bare()).blocks == (Text("None."),)


def test_commands_and_the_recipe_are_there_to_be_copied(records: ModuleType) -> None:
    found = {b.title: b.text for b in provenance(records.record()).blocks if isinstance(b, Code)}
    assert found["Commands of the steps"] == "# imatrix (bundled)\nllama-imatrix -m 'a b'"
    assert found["The recipe"].startswith("version: 1")
