"""Other sampling chains: what is best under each, and what could not be forecast."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.formats.sampling import Sampling
from cook.record.record import SampledChain
from cook.report.document import Items, Table, Text
from cook.report.sections.conditions import (
    answers,
    best,
    best_at,
    gain,
    in_parallel,
    other_chains,
    speedup,
)


def test_a_table_a_chain_with_both_rules(records: ModuleType) -> None:
    record = records.record()
    (chain,) = record.chains
    found = other_chains(record)
    (table,) = found.blocks
    assert isinstance(table, Table)
    assert table.caption == "temperature 0.8, top_p 0.9"
    assert [row[0] for row in table.rows] == [one.name for one in chain.candidates]
    bare, first = table.rows[0], table.rows[1]
    assert bare[1:4] == (None, None, None)
    assert all(cell is not None for cell in first)
    fastest = best(chain)
    assert fastest is not None
    gain = speedup(fastest, chain)
    assert gain is not None
    assert gain > 1


def test_a_chain_without_a_forecast_says_why(records: ModuleType) -> None:
    lost = SampledChain("bundled", Sampling(1.5), (), "nothing could be replayed")
    found = other_chains(replace(records.record(), chains=(lost,)))
    assert found.blocks == (Items(("temperature 1.5: nothing could be replayed",), marked=True),)
    assert best(lost) is None


def test_one_chain_is_told_with_its_engine_where_there_are_several(records: ModuleType) -> None:
    record = records.record()
    (chain,) = record.chains
    two = (chain, replace(chain, engine="ik"))
    captions = [
        b.caption for b in other_chains(replace(record, chains=two)).blocks if isinstance(b, Table)
    ]
    assert captions == [f"{chain.sampling.chain} on {name}" for name in ("bundled", "ik")]


def test_each_number_of_slots_has_its_own_best_length(records: ModuleType) -> None:
    record = records.record()
    table = next(b for b in in_parallel(record).blocks if isinstance(b, Table))
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
    notes = [block.text for block in in_parallel(record).blocks if isinstance(block, Text)]
    assert notes == lines


def test_live_is_never_over_predicted(records: ModuleType) -> None:
    bare, drafted = [s for s in records.record().slots if s.slots == 2][:2]
    assert gain(bare, drafted, live=True) is None, "the draft of four tokens did not run"
    assert gain(bare, drafted, live=False) == pytest.approx(190 / 150)
    assert gain(None, drafted, live=False) is None


def test_one_slot_has_nothing_to_show(records: ModuleType) -> None:
    found = in_parallel(replace(records.record(), slots=()))
    assert found.blocks == ()
    assert found.absent is not None
