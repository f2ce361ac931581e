"""What is compared with what."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.engines.base import DraftSettings
from cook.record.record import Record
from cook.report.compared import (
    Basis,
    at_common_setting,
    best_of_each,
    draft_label,
    draft_of,
    kind_of,
    scored,
    setting,
)


def test_live_and_predicted_are_not_mixed(records: ModuleType, record: Record) -> None:
    assert kind_of(records.record(predicted=False)) == "live"
    assert kind_of(record) == "predicted"
    assert len(scored(record, "live")) == 2
    assert len(scored(record, "predicted")) == 9


def test_each_draft_at_its_best_setting_best_first(record: Record) -> None:
    found = [s.candidate.name for s in best_of_each(record, "predicted")]
    assert found == ["Q8_0 n_max=4", "Q4_K_M n_max=4", "IQ1_S n_max=4"]


def test_acceptance_is_compared_at_the_setting_most_drafts_have(
    records: ModuleType, record: Record
) -> None:
    counts: tuple[tuple[Basis, int], ...] = (("predicted", 3), ("live", 2))
    for kind, count in counts:
        chosen, found = at_common_setting(record, kind)
        assert (chosen, len(found)) == ("draft length 4", count), "the pick's own"
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
