"""The page's figures are the record's."""

from __future__ import annotations

import pytest

from cook.record.record import read_record
from tools.when_drafting_pays import RECORD, cycles_of, main, page, shown_draft


def test_yield_over_cost_is_the_predicted_speedup() -> None:
    record = read_record(RECORD)
    draft = shown_draft(record)
    speeds = {
        c.settings.n_max: c.predicted.figures.decode_speed
        for c in record.candidates
        if c.draft == draft and c.settings and c.predicted
    }
    bare = next(c for c in record.candidates if c.draft is None and c.predicted)
    alone = bare.predicted.figures.decode_speed
    cycles = cycles_of(record, draft)
    assert {c.n_max for c in cycles} == set(speeds)
    for cycle in cycles:
        speed = speeds[cycle.n_max]
        assert speed is not None
        assert alone is not None
        assert cycle.tokens / cycle.needed == pytest.approx(speed / alone, rel=0.02)


def test_nothing_of_this_machine_is_shown() -> None:
    assert "/home/" not in RECORD.read_text(encoding="utf-8")
    assert "/root/" not in RECORD.read_text(encoding="utf-8")
    assert "{" not in page(read_record(RECORD)), "every figure found its place"


def test_one_record_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "RECORD.json" in capsys.readouterr().err
