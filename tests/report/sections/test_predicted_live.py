"""Forecasts next to live runs."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Table
from cook.report.sections.predicted_live import section


def test_only_candidates_with_both_are_compared(records: ModuleType) -> None:
    record = records.record()
    found = section(record)
    (table,) = [block for block in found.blocks if isinstance(block, Table)]
    both = [c.name for c in record.candidates if c.live and c.predicted]
    assert [row[0] for row in table.rows] == both
    assert table.rows[1][1:4] == ("162.40", "156.96", "+3.5%")
    assert table.rows[2][2] == "149.01", "of the twelve prompts that it was dealt"


def test_live_requests_without_a_forecast_are_left_out_of_both(records: ModuleType) -> None:
    record = records.record()
    one = record.candidate("Q8_0 n_max=4")
    forecast = records.requests(187.2, 4, 0.8)[:20]
    live = records.requests(180.0, 4, 0.8)
    said = records.prediction(records.requests(101.0)[:20], forecast, live[:20], 4)
    (table, *_) = [
        b
        for b in section(replace(record, candidates=(replace(one, predicted=said),))).blocks
        if isinstance(b, Table)
    ]
    off_by = f"{said.off_by:+.1%}"
    assert table.rows[0][3] == off_by
    assert table.rows[0][2] == f"{records.figures(live[:20]).end_to_end_speed:.2f}"
