"""Types by layer and group."""

from __future__ import annotations

from types import ModuleType

from cook.report.canvas import Plot
from cook.report.document import Table, Text
from cook.report.sections.types import MOST_MAPS, coverage, types


def test_every_span_of_every_draft_is_told(records: ModuleType) -> None:
    record = records.record()
    (table,) = [block for block in types(record).blocks if isinstance(block, Table)]
    assert len(table.rows) == sum(len(d.types) for d in record.drafts)
    assert ("Q8_0", "attention", "0-3", "2 q8_0", "8.500") in table.rows
    assert ("Q8_0", "embeddings", "none", "1 q4_K", "4.500") in table.rows


def test_maps_that_have_no_room_are_named(records: ModuleType) -> None:
    names = tuple(f"Q{i}" for i in range(MOST_MAPS + 2))
    notes = [b for b in types(records.record(names)).blocks if isinstance(b, Text)]
    assert [note.text.startswith("Not drawn: ") for note in notes] == [True]


def test_gaps_are_drawn_and_counted(records: ModuleType) -> None:
    record = records.record()
    found = coverage(record)
    table, plot, *_ = found.blocks
    assert isinstance(table, Table)
    matrix = record.imatrix
    assert ("chunks", f"{matrix.chunks} of {matrix.context} tokens") in table.rows
    assert isinstance(plot, Plot)
    assert "the least covered is layer 2 with 42 of 48" in plot.alt
