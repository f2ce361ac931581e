"""Speedups: a row a draft, live and predicted apart, and a row a category, losers marked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.canvas import Plot, svg_file
from cook.report.document import Table, Text
from cook.report.sections.forest import by_category, by_draft
from tests.report.records import CATEGORIES


def test_a_row_a_draft_with_live_and_predicted_told_apart(records: ModuleType) -> None:
    found = by_draft(records.record())
    (table,) = [b for b in found.blocks if isinstance(b, Table)]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Q8_0 n_max=4"] == ("180.13", "156.96", "1.70x (1.67-1.73)", "live")
    assert rows["Q4_K_M n_max=4"][3] == "12 of 24 prompts"
    assert rows["IQ1_S n_max=4"][3] == "predicted"
    assert table.strong == 0
    notes = " ".join(b.text for b in found.blocks if isinstance(b, Text))
    assert "Forecasts of the rows that did not run are multiplied by 0.97" in notes


def test_an_ngram_rival_has_no_draft_length(records: ModuleType) -> None:
    """Its label was "ngram-simple, None"."""
    record = records.record()
    candidates = tuple(
        replace(c, name="ngram-simple", draft="ngram-simple", settings=None)
        if c.name == "Q8_0 n_max=4"
        else c
        for c in record.candidates
        if c.draft != "Q8_0" or c.name == "Q8_0 n_max=4"
    )
    found = by_draft(replace(record, candidates=candidates))
    (plot,) = [b for b in found.blocks if isinstance(b, Plot)]
    drawn = svg_file(plot)
    assert "ngram-simple" in drawn
    assert "None" not in drawn


def test_a_row_a_category_with_its_requests(records: ModuleType) -> None:
    found = by_category(records.record())
    (table,) = [b for b in found.blocks if isinstance(b, Table)]
    assert {row[0] for row in table.rows} == set(CATEGORIES)
    assert {row[2:] for row in table.rows} == {("8", "0/8")}
    assert "Faster than no draft in every category." in found.lead


def test_losers_are_named(records: ModuleType) -> None:
    record = records.record()
    slow = records.candidate("Q8_0", slow=("prose",))
    candidates = tuple(slow if c.name == slow.name else c for c in record.candidates)
    found = by_category(replace(record, candidates=candidates))
    assert "Slower than no draft on prose." in found.lead
