"""The tables of a record."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.record.record import Candidate, Objective
from cook.report.candidates import (
    FIRST,
    SHOWN,
    candidates_table,
    in_order,
    in_short,
    section,
    short_table,
    to_look_at,
)
from cook.report.document import Table
from cook.report.show import shown
from cook.report.speedups import speed_of


def cells(table: Table) -> dict[str, str | None]:
    """By title, of the only row."""
    (row,) = table.rows
    return dict(zip((title for title, _ in table.columns), row, strict=True))


def names(found: list[Candidate]) -> list[str]:
    return [candidate.name for candidate in found]


def test_every_candidate_has_a_row_the_pick_and_then_by_the_speed_shown(
    records: ModuleType,
) -> None:
    record = records.record()
    found = in_order(record)
    assert sorted(names(found)) == sorted(record.pick.ranking)
    assert found[0].name == record.pick.candidate
    assert shown(record).wide.strong == names(to_look_at(record)).index(record.pick.candidate)
    objective = Objective(record.pick.maximize)
    speeds = [s.tokens_per_s for c in found if (s := speed_of(record, c, objective))]
    assert speeds == sorted(speeds, reverse=True)
    counted = replace(record, pick=replace(record.pick, maximize="acceptance_length"))
    assert names(in_order(counted)) == list(record.pick.ranking)


def test_the_short_table_keeps_what_ran_live_and_each_drafts_best(records: ModuleType) -> None:
    record = records.record()
    short = names(to_look_at(record))
    assert short == ["Q8_0 n_max=4", "Q4_K_M n_max=4", "IQ1_S n_max=4", "no draft"]
    live = {c.name for c in record.candidates if c.live is not None}
    assert live <= set(short)
    note = f"left out: {len(record.candidates) - len(short)} more settings of these drafts"
    assert any(row.startswith(note) for row in shown(record).answers)


def test_one_draft_on_two_engines_is_two(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (2, 4))
    other = [
        replace(c, name=c.name + " @ik", engine="ik", live=None)
        for c in record.candidates
        if c.draft is not None
    ]
    both = replace(record, candidates=record.candidates + tuple(other))
    assert names(to_look_at(both)) == ["Q8_0 n_max=4", "Q8_0 n_max=4 @ik", "no draft"]


def test_a_table_without_anything_left_out_does_not_say_so(records: ModuleType) -> None:
    record = records.record(("Q8_0",), (4,))
    assert to_look_at(record) == in_order(record)
    assert not any("more settings" in row for row in shown(record).answers)


def test_a_short_row_is_of_one_kind_of_figure_and_says_which(records: ModuleType) -> None:
    record = records.record()
    live, guessed = (record.candidate(f"{q} n_max=4") for q in ("Q8_0", "IQ1_S"))
    assert live is not None
    assert guessed is not None
    row = cells(short_table(record, [live]))
    assert row["figures"] == "live"
    assert row["end-to-end speedup (95%)"] == "1.70x (1.67-1.73)"
    row = cells(short_table(record, [guessed]))
    assert row["figures"] == "predicted"
    assert row["end-to-end speedup (95%)"] == "1.54x"


@pytest.mark.parametrize(
    ("maximize", "own"),
    [("decode_speed", "decode speedup"), ("acceptance_length", "tokens a cycle")],
)
def test_what_is_maximized_is_in_the_short_table(
    records: ModuleType, maximize: str, own: str
) -> None:
    record = records.record()
    record = replace(record, pick=replace(record.pick, maximize=maximize))
    (winner,) = (c for c in record.candidates if c.name == record.pick.candidate)
    assert cells(short_table(record, [winner]))[own]


def test_the_short_table_fits_a_screen_and_keeps_no_draft(records: ModuleType) -> None:
    record = records.record(tuple(f"Q{i}" for i in range(30)), (4,), predicted=False)
    short = names(in_short(record, to_look_at(record)))
    assert len(short) == SHOWN
    assert "no draft" in short
    assert record.pick.candidate in short


def test_the_chance_in_the_table_is_the_pick_s(records: ModuleType) -> None:
    record = records.record()
    (winner,) = (c for c in record.candidates if c.name == record.pick.candidate)
    assert cells(candidates_table(record, [winner]))["chance within 1%"] == "97%"
    without = replace(record, pick=replace(record.pick, within={}))
    assert "chance within 1%" not in cells(candidates_table(without, [winner]))


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
