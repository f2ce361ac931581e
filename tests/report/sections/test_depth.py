"""Acceptance by position keeps its counts."""

from __future__ import annotations

from types import ModuleType

from cook.report.document import Table
from cook.report.sections.depth import section


def test_counts_at_the_longest_setting(records: ModuleType) -> None:
    record = records.record(lengths=(2, 6))
    table = next(b for b in section(record).blocks if isinstance(b, Table))
    assert [title for title, _ in table.columns] == ["draft", *(str(d) for d in range(1, 7))]
    found = next(c for c in record.candidates if c.name == "Q8_0 n_max=6")
    row = next(row for row in table.rows if row[0] == "Q8_0")
    assert row[1:] == tuple(f"{d.accepted}/{d.drafted}" for d in found.predicted.by_depth)


def test_live_runs_say_why_there_are_none(records: ModuleType) -> None:
    found = section(records.record(predicted=False))
    assert found.blocks == ()
    assert found.absent is not None
