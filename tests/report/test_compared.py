"""What is compared with what."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from cook.engines.base import DraftSettings
from cook.report.compared import (
    at_common_setting,
    best_of_each,
    draft_label,
    draft_of,
    kind_of,
    scored,
    setting,
)


def test_live_and_predicted_are_not_mixed(records: ModuleType) -> None:
    assert kind_of(records.record(predicted=False)) == "live"
    record = records.record()
    assert kind_of(record) == "predicted"
    assert len(scored(record, "live")) == 2
    assert len(scored(record, "predicted")) == 9


def test_each_draft_at_its_best_setting_best_first(records: ModuleType) -> None:
    found = best_of_each(records.record(), "predicted")
    assert [s.draft for s in found] == ["Q8_0", "Q4_K_M", "IQ1_S"]
    assert {s.candidate.name.partition(" ")[2] for s in found} == {"n_max=4"}
    speeds = [s.figures.decode_speed or 0 for s in found]
    assert speeds == sorted(speeds, reverse=True)


def test_acceptance_is_compared_at_the_setting_most_drafts_have(records: ModuleType) -> None:
    chosen, found = at_common_setting(records.record(), "predicted")
    assert chosen == "draft length 4", "the pick's own, where all are as common"
    assert len(found) == 3
    chosen, found = at_common_setting(records.record(), "live")
    assert (chosen, len(found)) == ("draft length 4", 2)
    assert at_common_setting(records.bare(), "live") == ("", [])


def test_a_quant_of_two_engines_is_two_drafts(records: ModuleType) -> None:
    record = records.record(("A",))
    other = records.draft("A", 5, engine="ik")
    record = replace(record, drafts=(*record.drafts, other))
    assert draft_label(record, "A", "ik") == "A (ik)"
    assert draft_of(record, records.candidate("A", engine="ik")) == other
    assert draft_of(record, records.candidate("A", engine="gone")) == record.drafts[0]


def test_settings_are_told_in_full(records: ModuleType) -> None:
    one = records.candidate("A")
    whole = replace(one, settings=DraftSettings(n_max=8, n_min=2, p_min=0.5), cache_type="q8_0")
    assert setting(records.record(), whole) == "draft length 8 n_min=2 p_min=0.5"
    assert setting(records.record(), records.candidate(None)) == "no draft"
