"""Speedup by category: the pick's, the losers marked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Table
from cook.report.sections.gains import section
from tests.report.records import CATEGORIES, figures


def test_a_row_a_category_and_every_draft_at_one_length(records: ModuleType) -> None:
    found = section(records.record())
    own, every = [b for b in found.blocks if isinstance(b, Table)]
    assert {row[0] for row in own.rows} == set(CATEGORIES)
    assert every.title == "Every draft at draft length 4, predicted"
    assert "Faster than no draft in every category." in found.lead


def test_losers_are_named(records: ModuleType) -> None:
    record = records.record()
    winner = record.candidate(record.pick.candidate)
    slow = {**winner.categories, "prose": figures(speed=60.0, n_max=4, rate=0.2)}
    changed = replace(winner, categories=slow)
    record = replace(
        record, candidates=tuple(changed if c is winner else c for c in record.candidates)
    )
    assert "Slower than no draft on prose." in section(record).lead


def test_without_categories_it_says_so(records: ModuleType) -> None:
    assert section(records.bare()).absent
