"""Other sampling chains: what is best under each, and what could not be forecast."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.formats.sampling import Sampling
from cook.record.record import SampledChain
from cook.report.document import Items, Table
from cook.report.sections.other_chains import best, section, speedup


def test_a_table_a_chain_with_both_rules(records: ModuleType) -> None:
    record = records.record()
    (chain,) = record.chains
    found = section(record)
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
    found = section(replace(records.record(), chains=(lost,)))
    assert found.blocks == (Items(("temperature 1.5: nothing could be replayed",), marked=True),)
    assert best(lost) is None


def test_one_chain_is_told_with_its_engine_where_there_are_several(records: ModuleType) -> None:
    record = records.record()
    (chain,) = record.chains
    two = (chain, replace(chain, engine="ik"))
    captions = [
        b.caption for b in section(replace(record, chains=two)).blocks if isinstance(b, Table)
    ]
    assert captions == [f"{chain.sampling.chain} on {name}" for name in ("bundled", "ik")]
