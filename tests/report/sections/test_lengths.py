"""Lines of speed against draft length; their figures: ``tests/test_kept_records.py``."""

from __future__ import annotations

from dataclasses import replace

from cook.record.record import Record
from cook.report.sections.lengths import section
from tests.report.records import tables_of


def test_other_settings_make_lines_of_their_own(record: Record) -> None:
    half = tuple(
        replace(c, cache_type="q8_0" if i % 2 else "f16") if c.draft else c
        for i, c in enumerate(record.candidates)
    )
    (table,) = tables_of(section(replace(record, candidates=half)))
    assert {"Q8_0 kv=f16", "Q8_0 kv=q8_0"} <= {row[0] for row in table.rows}
