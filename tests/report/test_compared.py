"""What is compared with what."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.engines.base import DraftSettings
from cook.record.record import Record
from cook.report.compared import (
    Basis,
    at_common_setting,
    draft_label,
    draft_of,
    kind_of,
    scored,
    setting,
)

KINDS: tuple[Basis, ...] = ("live", "predicted")


def test_live_and_predicted_are_not_mixed(record: Record) -> None:
    assert kind_of(record) == "predicted"
    both = [c for c in record.candidates if c.live is not None]
    assert kind_of(replace(record, candidates=tuple(both))) == "live", "where it is even"
    assert [len(scored(record, kind)) for kind in KINDS] == [2, 9]


def test_acceptance_is_compared_at_the_setting_most_drafts_have(
    records: ModuleType, record: Record
) -> None:
    found = [at_common_setting(record, kind) for kind in KINDS]
    assert [(chosen, len(every)) for chosen, every in found] == [
        ("draft length 4", 2),
        ("draft length 4", 3),
    ], "the pick's own"
    assert at_common_setting(records.bare(), "live") == ("", [])


def test_a_quant_of_two_engines_is_two_drafts(records: ModuleType) -> None:
    record = records.record(("A",))
    other = records.draft("A", 5, engine="ik")
    record = replace(record, drafts=(*record.drafts, other))
    assert draft_label(record, "A", "ik") == "A (ik)"
    assert draft_of(record, records.candidate("A", engine="ik")) == other
    assert draft_of(record, records.candidate("A", engine="gone")) == record.drafts[0]


def test_settings_are_given_in_full(records: ModuleType, record: Record) -> None:
    one = records.candidate("A")
    whole = replace(one, settings=DraftSettings(n_max=8, n_min=2, p_min=0.5), cache_type="q8_0")
    assert setting(record, whole) == "draft length 8 n_min=2 p_min=0.5"
    assert setting(record, records.candidate(None)) == "no draft"
