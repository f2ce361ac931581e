"""Parts of the time add up to the whole."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.report.document import Table
from cook.report.sections.time import section


@pytest.mark.parametrize("predicted", [True, False])
def test_parts_sum_to_the_time_of_a_token(records: ModuleType, predicted: bool) -> None:
    record = records.record(predicted=predicted)
    table = next(b for b in section(record).blocks if isinstance(b, Table))
    parts = ("verify", "draft", "prefill") if predicted else ("decode", "prefill", "transport")
    assert set(parts) < {title for title, _ in table.columns}
    by_name = {c.name: c for c in record.candidates}
    assert len(table.rows) == 4, "no draft and three drafts"
    for name, *cells, total in table.rows:
        assert name is not None
        assert total is not None
        candidate = by_name[name]
        found = candidate.predicted.figures if predicted else candidate.live
        spent = found.decode_ms + found.prompt_ms if predicted else found.wall_ms
        assert float(total) == pytest.approx(spent / found.tokens, abs=0.01)
        assert sum(float(c) for c in cells if c) == pytest.approx(float(total), abs=0.01)


def test_the_picks_row_is_marked(records: ModuleType) -> None:
    table = next(b for b in section(records.record()).blocks if isinstance(b, Table))
    assert table.strong is not None
    assert table.rows[table.strong][0] == "Q8_0 n_max=4"


def test_an_overhead_below_zero_is_taken_off_what_was_timed(records: ModuleType) -> None:
    record = records.record()
    tenth = [
        replace(
            c,
            predicted=replace(
                c.predicted,
                verify_s=c.predicted.verify_s
                + c.predicted.overhead_s
                + 0.1 * c.predicted.figures.decode_ms / 1000,
                overhead_s=-0.1 * c.predicted.figures.decode_ms / 1000,
            ),
        )
        for c in record.candidates
        if c.predicted
    ]
    table = next(
        b for b in section(replace(record, candidates=tuple(tenth))).blocks if isinstance(b, Table)
    )
    assert "overhead" not in {title for title, _ in table.columns}
    by_name = {c.name: c for c in tenth}
    for name, *cells, total in table.rows:
        found = by_name[name or ""].predicted.figures
        spent = (found.decode_ms + found.prompt_ms) / found.tokens
        assert float(total or "nan") == pytest.approx(spent, abs=0.01)
        assert sum(float(c) for c in cells if c) == pytest.approx(spent, abs=0.01)
