"""What is best under other sampling chains and in parallel, and what could not be forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.formats.sampling import Sampling
from cook.record.record import Record, SampledChain
from cook.report.document import Items
from cook.report.sections.conditions import answers, best, best_at, gain, in_parallel, other_chains
from tests.report.records import tables_of


def test_a_table_a_chain_with_both_rules(record: Record) -> None:
    (chain,) = record.chains
    (table,) = tables_of(other_chains(record))
    assert table.caption == "temperature 0.8, top_p 0.9"
    assert [row[0] for row in table.rows] == [one.name for one in chain.candidates]
    assert table.rows[0] == ("no draft", None, None, None, "100.07", "91.82", None)
    assert table.rows[1] == (
        *("Q8_0 n_max=2", "50.0 ± 0.3", "334/668", "62.5", "125.28", "112.61"),
        "1.23x (1.20-1.25)",
    )
    assert best(chain).name == "Q8_0 n_max=2"
    two = replace(record, chains=(chain, replace(chain, engine="ik")))
    assert [table.caption for table in tables_of(other_chains(two))] == [
        f"temperature 0.8, top_p 0.9 on {name}" for name in ("bundled", "ik")
    ]


def test_a_chain_without_a_forecast_says_why(record: Record) -> None:
    lost = SampledChain("bundled", Sampling(1.5), (), "nothing could be replayed")
    found = other_chains(replace(record, chains=(lost,)))
    assert found.blocks == (Items(("temperature 1.5: nothing could be replayed",), marked=True),)
    assert best(lost) is None


def test_each_number_of_slots_has_its_own_best_length(record: Record) -> None:
    found = in_parallel(record)
    (table,) = tables_of(found)
    titles = [title for title, _ in table.columns]
    rows = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [best_at(record.slots, n).settings.n_max for n in (1, 2, 4)] == [4, 2, 2]
    assert {r["slots"] for r in rows if "n_max" in str(r["candidate"])} == {"1", "2", "4"}
    (two,) = [r for r in rows if r["slots"] == "2" and str(r["candidate"]).endswith("n_max=2")]
    assert two["predicted t/s"] == "195.0"
    assert two["off by"] == "+5.0%"
    assert two["speedup live"] == "1.30"
    assert not next(r for r in rows if r["slots"] == "1")["live t/s"], "it did not run"
    lines = [
        "1 slot: drafting pays: n_max=4 gives 1.80x of no draft, predicted.",
        "2 slots: drafting pays: n_max=2 gives 1.30x of no draft, live.",
        "4 slots: not worth it: n_max=2 gives 0.95x of no draft, live.",
    ]
    assert answers(record.slots) == lines
    assert [block for block in found.blocks if isinstance(block, str)] == lines


def test_live_is_never_over_predicted(record: Record) -> None:
    bare, drafted = [s for s in record.slots if s.slots == 2][:2]
    assert gain(bare, drafted, live=True) is None, "the draft of four tokens did not run"
    assert gain(bare, drafted, live=False) == pytest.approx(190 / 150)
    assert gain(None, drafted, live=False) is None
