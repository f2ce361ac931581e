"""The document: every section there, each with something in it or a reason."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cook.engines.speculation import NgramSettings, NgramType
from cook.record.record import Record
from cook.report.view import FOLDED, IN_SIGHT, document
from tests.report.records import plots_of, tables_of


@pytest.mark.parametrize("kind", ["record", "bare", "hostile"])
def test_a_section_has_blocks_that_fit_or_a_reason(records: ModuleType, kind: str) -> None:
    found = document(getattr(records, kind)())
    assert len({s.id for s in found.sections}) == len(IN_SIGHT) + len(FOLDED)
    assert len({p.name for p in found.plots}) == len(found.plots)
    for section in found.sections:
        assert bool(section.blocks) != bool(section.absent), section.id
        for table in tables_of(section):
            assert {len(row) for row in table.rows} <= {len(table.columns)}, section.id
            assert table.strong is None or table.strong < len(table.rows)
        assert all(len(plot.alt) > 20 for plot in plots_of(section))


def test_a_whole_record_leaves_nothing_out(record: Record) -> None:
    found = document(record)
    assert found.absent == ()
    names = {plot.name for plot in found.plots}
    assert names == {
        *("speedups", "gains", "lengths", "perplexity", "divergence", "forecast", "category"),
        *("types", "time", "imatrix", "slots"),
    }
    shown = [s.id for s in found.shown[:5] if not s.folded]
    assert shown == ["speedups", "lengths", "gains", "warnings"], "what is read first"


def test_live_figures_alone_leave_out_what_only_replay_knows(records: ModuleType) -> None:
    found = document(records.record(predicted=False))
    assert {section.id for section in found.absent} == {"forecast", "slots", "sampling"}


def test_a_rival_stands_among_the_drafts(record: Record) -> None:
    """It has no file and no draft length, and no section stumbles over that."""
    one = record.candidates[2]
    ngram: Any = {"settings": None, "cache_type": None, "ngram": NgramSettings(NgramType.MOD)}
    rival = replace(one, name="ngram-mod", draft="ngram-mod", **ngram)
    others = tuple(c for c in record.candidates if c is not one)
    for pick in (record.pick, replace(record.pick, candidate=rival.name)):
        found = document(replace(record, candidates=(*others, rival), pick=pick))
        assert any("ngram-mod" in str(section) for section in found.shown)
