"""Parts of the time add up to the whole."""

from __future__ import annotations

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
