"""Requests in parallel: predicted next to live, and a sentence for each number of slots."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.report.document import Table, Text
from cook.report.sections.in_parallel import answers, best_at, gain, section


def test_each_number_of_slots_has_its_own_best_length(records: ModuleType) -> None:
    record = records.record()
    table = next(b for b in section(record).blocks if isinstance(b, Table))
    titles = [title for title, _ in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    fast = {r["slots"]: r["candidate"] for r in rows if "n_max" in str(r["candidate"])}
    best = [best_at(record.slots, n) for n in (1, 2, 4)]
    assert [one.settings.n_max for one in best if one and one.settings] == [4, 2, 2]
    assert set(fast) == {"1", "2", "4"}
    (two,) = [r for r in rows if r["slots"] == "2" and str(r["candidate"]).endswith("n_max=2")]
    assert two["predicted t/s"] == "195.0"
    assert two["off by"] == "+5.0%"
    assert two["speedup live"] == "1.30"
    assert not next(r for r in rows if r["slots"] == "1")["live t/s"], "it did not run"


def test_whether_it_pays_is_said_of_each(records: ModuleType) -> None:
    record = records.record()
    lines = answers(record.slots)
    assert lines[0] == "1 slot: drafting pays: n_max=4 gives 1.80x of no draft, predicted."
    assert lines[1] == "2 slots: drafting pays: n_max=2 gives 1.30x of no draft, live."
    assert lines[2] == "4 slots: not worth it: n_max=2 gives 0.95x of no draft, live."
    notes = [block.text for block in section(record).blocks if isinstance(block, Text)]
    assert notes == lines


def test_live_is_never_over_predicted(records: ModuleType) -> None:
    bare, drafted = [s for s in records.record().slots if s.slots == 2][:2]
    assert gain(bare, drafted, live=True) is None, "the draft of four tokens did not run"
    assert gain(bare, drafted, live=False) == pytest.approx(190 / 150)
    assert gain(None, drafted, live=False) is None


def test_one_slot_has_nothing_to_show(records: ModuleType) -> None:
    found = section(replace(records.record(), slots=()))
    assert found.blocks == ()
    assert found.absent is not None
