"""Speedup by category: the pick's, the losers marked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Table
from cook.report.sections.gains import section
from tests.report.records import CATEGORIES


def test_a_row_a_category_with_its_requests(records: ModuleType) -> None:
    found = section(records.record())
    (table,) = [b for b in found.blocks if isinstance(b, Table)]
    assert {row[0] for row in table.rows} == set(CATEGORIES)
    assert {row[2:] for row in table.rows} == {("8", "0/8")}
    assert "Faster than no draft in every category." in found.lead


def test_losers_are_named(records: ModuleType) -> None:
    record = records.record()
    slow = records.candidate("Q8_0", slow=("prose",))
    candidates = tuple(slow if c.name == slow.name else c for c in record.candidates)
    found = section(replace(record, candidates=candidates))
    assert "Slower than no draft on prose." in found.lead


def test_without_categories_it_says_so(records: ModuleType) -> None:
    assert section(records.bare()).absent
