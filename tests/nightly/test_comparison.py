"""``cook report --against``: a record of today judged against an earlier one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.errors import GateError, InputError
from cook.nightly.comparison import as_document, compare, raise_for
from cook.nightly.gates import Verdict
from cook.record.record import Record, read_record, write_record

KEPT = Path(__file__).parents[1] / "data" / "records" / "live.json"


@pytest.fixture
def record() -> Record:
    return replace(read_record(KEPT), created="2027-01-01T00:00:00Z")


def test_a_record_is_judged_against_another(record: Record, tmp_path: Path) -> None:
    judgement = compare(record, KEPT)
    assert not judgement.regressions
    raise_for(judgement)
    assert (as_document(judgement) or {})["findings"] == judgement.findings
    first, *others = record.drafts
    larger = replace(first, file_bytes=2 * (first.file_bytes or 0))
    write_record(replace(record, drafts=(larger, *others)), tmp_path / "larger.json")
    worse = compare(read_record(tmp_path / "larger.json"), KEPT)
    assert [f.gate for f in worse.findings if f.verdict is Verdict.REGRESSION] == ["size"]
    with pytest.raises(GateError, match="1 regression: size of"):
        raise_for(worse)


def test_without_an_earlier_night_it_says_so(record: Record, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such history"):
        compare(record, tmp_path / "none.jsonl")
    other = replace(record, recipe_sha256="0" * 64)
    with pytest.raises(InputError, match="no earlier good night"):
        compare(other, KEPT.with_name("history.jsonl"))
    assert as_document(None) is None
