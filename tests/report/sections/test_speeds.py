"""Speedups of each draft and by category, forecasts next to live runs, and parts of the time. What
the tables say of whole records: ``tests/test_kept_records.py``."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.record.record import Record
from cook.report.canvas import svg_file
from cook.report.sections.speeds import by_category, by_draft, predicted_live, where_time_goes
from tests.report.records import CATEGORIES, plots_of, tables_of, with_candidates


def test_an_ngram_rival_has_no_draft_length(record: Record) -> None:
    """Its label was "ngram-simple, None"."""
    rival = replace(record.candidates[2], name="ngram-simple", draft="ngram-simple", settings=None)
    others = [c for c in record.candidates if c.draft != "Q8_0"]
    (plot,) = plots_of(by_draft(replace(record, candidates=(*others, rival))))
    drawn = svg_file(plot)
    assert "ngram-simple" in drawn
    assert "None" not in drawn


def test_losers_are_named(records: ModuleType) -> None:
    slow = records.candidate("Q8_0", slow=("prose",))
    found = by_category(with_candidates(records.record(), slow))
    assert "Slower than no draft on prose." in found.lead
    (table,) = tables_of(found)
    assert {row[0]: row[2:] for row in table.rows} == {
        name: ("8", "8/8" if name == "prose" else "0/8") for name in CATEGORIES
    }


def test_live_requests_without_a_forecast_are_left_out_of_both(records: ModuleType) -> None:
    one = records.record().candidate("Q8_0 n_max=4")
    forecast = records.requests(187.2, 4, 0.8)[:20]
    live = records.requests(180.0, 4, 0.8)
    said = records.prediction(records.requests(101.0)[:20], forecast, live[:20], 4)
    found = predicted_live(with_candidates(records.record(), replace(one, predicted=said)))
    row = next(row for row in tables_of(found)[0].rows if row[0] == one.name)
    assert row[3] == f"{said.off_by:+.1%}"
    assert row[2] == f"{records.figures(live[:20]).end_to_end_speed:.2f}"


@pytest.mark.parametrize("predicted", [True, False])
def test_parts_sum_to_the_time_of_a_token(records: ModuleType, predicted: bool) -> None:
    record = records.record(predicted=predicted)
    (table,) = tables_of(where_time_goes(record))
    parts = ("verify", "draft", "prefill") if predicted else ("decode", "prefill", "transport")
    assert set(parts) < {title for title, _ in table.columns}
    assert len(table.rows) == 4, "no draft and three drafts"
    for name, *cells, total in table.rows:
        candidate = record.candidate(name)
        found = candidate.predicted.figures if predicted else candidate.live
        spent = found.decode_ms + found.prompt_ms if predicted else found.wall_ms
        assert float(total or 0) == pytest.approx(spent / found.tokens, abs=0.01)
        assert sum(float(c) for c in cells if c) == pytest.approx(float(total or 0), abs=0.01)
