"""The document: every section there, each with something in it or a reason."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from cook.engines.speculation import NgramSettings, NgramType
from cook.report.canvas import Plot
from cook.report.document import Table
from cook.report.view import FOLDED, IN_SIGHT, document


@pytest.mark.parametrize("kind", ["record", "bare", "hostile"])
def test_a_section_has_blocks_or_a_reason(records: ModuleType, kind: str) -> None:
    found = document(getattr(records, kind)())
    assert len(found.sections) == len(IN_SIGHT) + len(FOLDED)
    for section in found.sections:
        assert bool(section.blocks) != bool(section.absent), section.id
    names = [section.id for section in found.sections] + [plot.name for plot in found.plots]
    assert len({s.id for s in found.sections}) == len(found.sections)
    assert len({p.name for p in found.plots}) == len(found.plots), names


def test_a_whole_record_leaves_nothing_out(records: ModuleType) -> None:
    found = document(records.record())
    assert found.absent == ()
    assert {plot.name for plot in found.plots} == {
        "speedups",
        "gains",
        "lengths",
        "perplexity",
        "divergence",
        "forecast",
        "category",
        "types",
        "time",
        "imatrix",
        "slots",
    }


def test_live_figures_alone_leave_out_what_only_replay_knows(records: ModuleType) -> None:
    found = document(records.record(predicted=False))
    assert {section.id for section in found.absent} == {
        "forecast",
        "slots",
        "sampling",
    }


@pytest.mark.parametrize("kind", ["record", "bare", "hostile"])
def test_rows_have_the_columns_of_their_table(records: ModuleType, kind: str) -> None:
    for section in document(getattr(records, kind)()).shown:
        for block in section.blocks:
            if isinstance(block, Table):
                assert {len(row) for row in block.rows} <= {len(block.columns)}, section.id
                assert block.strong is None or block.strong < len(block.rows)
            if isinstance(block, Plot):
                assert len(block.alt) > 20


def test_only_what_is_read_first_is_in_sight(records: ModuleType) -> None:
    found = document(records.record())
    shown = [s.id for s in found.shown if not s.folded]
    assert shown == ["speedups", "lengths", "gains", "warnings"]
    assert {s.id for s in found.shown if s.folded} >= {"candidates", "provenance", "category"}


def test_a_rival_stands_beside_the_drafts(records: ModuleType) -> None:
    """It has no file and no draft length, and no section stumbles over that."""
    known = records.record()
    one = next(c for c in known.candidates if c.live is not None and c.draft is not None)
    rival = replace(
        one,
        name="ngram-mod",
        draft="ngram-mod",
        settings=None,
        cache_type=None,
        ngram=NgramSettings(NgramType.MOD),
    )
    others = tuple(c for c in known.candidates if c is not one)
    for pick in (known.pick, replace(known.pick, candidate=rival.name)):
        whole = replace(known, candidates=(*others, rival), pick=pick)
        found = document(whole)
        assert any("ngram-mod" in str(section) for section in found.shown)
