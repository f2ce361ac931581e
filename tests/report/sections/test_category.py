"""Acceptance by category: a row a draft, a column a category."""

from __future__ import annotations

from types import ModuleType

from cook.report.document import Table
from cook.report.sections.category import section
from tests.report.records import CATEGORIES


def test_every_cell_has_its_counts(records: ModuleType) -> None:
    found = section(records.record())
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    assert [title for title, _ in table.columns] == ["draft", *CATEGORIES]
    assert [row[0] for row in table.rows] == ["Q8_0", "Q4_K_M", "IQ1_S"]
    assert table.strong == 0
    assert all("/" in (cell or "") for row in table.rows for cell in row[1:])
    assert "as replayed" in found.lead
