"""The table of all candidates: those to look at in sight, the others folded away."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.report.document import Table
from cook.report.sections.tables import FIRST
from cook.report.sections.tables import candidates as section


def tables(blocks: tuple[object, ...]) -> list[Table]:
    return [block for block in blocks if isinstance(block, Table)]


def test_each_drafts_best_is_in_sight_and_every_candidate_is_there(records: ModuleType) -> None:
    record = records.record()
    found = section(record)
    assert found.title == "All candidates"
    sight, folded = tables(found.blocks)
    assert [row[0] for row in sight.rows] == [
        "Q8_0 n_max=4",
        "Q4_K_M n_max=4",
        "IQ1_S n_max=4",
        "no draft",
    ]
    assert sight.strong == 0
    assert folded.title == "6 more candidates"
    names = [row[0] for row in (*sight.rows, *folded.rows)]
    assert sorted(str(n) for n in names) == sorted(c.name for c in record.candidates)
    assert {len(row) for row in (*sight.rows, *folded.rows)} == {len(sight.columns)}


def test_many_live_candidates_do_not_fill_the_page(records: ModuleType) -> None:
    record = records.record(tuple(f"Q{i}" for i in range(8)), (2, 4, 8), predicted=False)
    sight, folded = tables(section(record).blocks)
    assert len(sight.rows) == FIRST
    assert len(folded.rows) == len(record.candidates) - FIRST


def test_quants_without_a_score(records: ModuleType) -> None:
    record = replace(records.record(), candidates=())
    (only,) = tables(section(record).blocks)
    assert [row[0] for row in only.rows] == ["Q8_0", "Q4_K_M", "IQ1_S"]
    assert only.strong is None
