"""Lines of speed against draft length."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Table
from cook.report.sections.lengths import section


def table_of(record: object) -> Table:
    return next(b for b in section(record).blocks if isinstance(b, Table))  # type: ignore[arg-type]


def test_a_line_a_draft_and_a_column_a_length(records: ModuleType) -> None:
    table = table_of(records.record(lengths=(2, 4, 16)))
    assert [title for title, _ in table.columns] == ["draft", "2", "4", "16"]
    assert [row[0] for row in table.rows] == ["Q8_0", "Q4_K_M", "IQ1_S"]
    assert table.caption == "Without a draft: 100.01 tokens/s."


def test_other_settings_make_lines_of_their_own(records: ModuleType) -> None:
    record = records.record()
    half = [
        replace(c, cache_type="q8_0" if i % 2 else "f16") if c.draft else c
        for i, c in enumerate(record.candidates)
    ]
    names = [row[0] for row in table_of(replace(record, candidates=tuple(half))).rows]
    assert {"Q8_0 kv=f16", "Q8_0 kv=q8_0"} <= set(names)


def test_the_figure_is_the_one_that_is_maximized(records: ModuleType) -> None:
    record = records.record()
    pick = replace(record.pick, maximize="end_to_end_speed")
    assert table_of(record).title == "Figures: tokens/s decode, by draft length (~ predicted)"
    assert (
        table_of(replace(record, pick=pick)).title
        == "Figures: tokens/s end to end, by draft length (~ predicted)"
    )


def test_what_ran_live_is_its_live_speed(records: ModuleType) -> None:
    row = next(row for row in table_of(records.record()).rows if row[0] == "Q8_0")
    assert row[2] == "180.13"
    assert row[1].startswith("~")
