"""What the importance matrix covers, and where it does not."""

from __future__ import annotations

from types import ModuleType

from cook.report.canvas import Plot
from cook.report.document import Table
from cook.report.sections.coverage import section


def test_gaps_are_drawn_and_counted(records: ModuleType) -> None:
    record = records.record()
    found = section(record)
    table, plot, *_ = found.blocks
    assert isinstance(table, Table)
    matrix = record.imatrix
    assert ("chunks", f"{matrix.chunks} of {matrix.context} tokens") in table.rows
    assert isinstance(plot, Plot)
    assert "the least covered is layer 2 with 42 of 48" in plot.alt
