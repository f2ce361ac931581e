"""Forecasts beside live runs."""

from __future__ import annotations

from types import ModuleType

from cook.report.document import Table
from cook.report.sections.predicted_live import section


def test_only_candidates_with_both_are_compared(records: ModuleType) -> None:
    record = records.record()
    found = section(record)
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    both = [c.name for c in record.candidates if c.live and c.predicted]
    assert [row[0] for row in table.rows] == both
    assert {row[3] for row in table.rows} == {"+1.2%"}
    assert {row[4] for row in table.rows} == {"0.990 to 1.040"}


def test_what_was_only_measured_says_so(records: ModuleType) -> None:
    absent = section(records.record(predicted=False)).absent
    assert absent == "nothing was predicted: every figure was measured live"
