"""Speedups of one kind each, with intervals, every draft at its best."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from cook.record.measured import Interval, PromptFigures
from cook.report.speedups import (
    Speedup,
    base_of,
    contradicted,
    drafts_at_their_best,
    speedup,
    speedups_by_category,
)


def prompts(speed: float, count: int = 16) -> PromptFigures:
    tokens = tuple(50 + 3 * (i % 5) for i in range(count))
    return PromptFigures(
        ids=tuple(f"p{i}" for i in range(count)),
        categories=tuple(("docstring", "prose")[i % 2] for i in range(count)),
        tokens=tokens,
        decode_ms=tuple(1000 * n / speed for n in tokens),
        wall_ms=tuple(1000 * n / speed * (1 + 0.02 * (i % 3)) for i, n in enumerate(tokens)),
        drafted=(None,) * count,
        accepted=(None,) * count,
    )


def test_live_is_over_live_and_predicted_over_predicted(records: ModuleType) -> None:
    record = records.record()
    winner = record.candidate(record.pick.candidate)
    live, guess = speedup(record, winner, "live"), speedup(record, winner, "predicted")
    assert live is not None
    assert guess is not None
    assert live.ratio == winner.speedup
    assert live.interval == winner.speedup_interval
    base = base_of(record, "predicted")
    assert base is not None
    theirs = base.predicted.figures.end_to_end_speed  # type: ignore[union-attr]
    assert guess.ratio == pytest.approx(winner.predicted.figures.end_to_end_speed / theirs)
    assert guess.interval is None, "the record has no predicted figures prompt by prompt"


def test_prompts_give_a_forecast_its_interval(records: ModuleType) -> None:
    record = records.record()
    speeds = {None: 100.0, "Q8_0": 180.0}

    def with_prompts(candidate: Any) -> Any:
        speed = speeds.get(candidate.draft, 150.0)
        figures = replace(candidate.predicted.figures, end_to_end_speed=speed)
        guess = replace(candidate.predicted, prompts=prompts(speed), figures=figures)
        return replace(candidate, predicted=guess)

    record = replace(record, candidates=tuple(map(with_prompts, record.candidates)))
    found = speedup(record, record.candidates[1], "predicted")
    assert found is not None
    assert found.interval is not None
    assert found.interval.low <= 1.8 <= found.interval.high


def test_a_row_a_draft_fastest_first_and_live_where_it_ran(records: ModuleType) -> None:
    rows = drafts_at_their_best(records.record())
    assert {row.draft for row in rows} == {"Q8_0", "Q4_K_M", "IQ1_S"}
    assert [row.best for row in rows] == sorted((row.best for row in rows), reverse=True)
    by_draft = {row.draft: row for row in rows}
    assert by_draft["Q8_0"].live is not None
    assert by_draft["Q8_0"].length == 4
    assert by_draft["IQ1_S"].live is None
    assert by_draft["IQ1_S"].predicted is not None
    assert drafts_at_their_best(records.bare()) == []


def test_categories_have_their_prompts_and_the_losers_show(records: ModuleType) -> None:
    record = records.record()
    base, winner = record.candidates[0], record.candidate(record.pick.candidate)
    base = replace(base, prompts=prompts(100.0))
    winner = replace(winner, prompts=prompts(80.0))
    changed = {base.name: base, winner.name: winner}
    record = replace(record, candidates=tuple(changed.get(c.name, c) for c in record.candidates))
    found = speedups_by_category(record, winner, "live")
    assert set(found) == {"docstring", "prose", "class"}
    _, each = found["prose"]
    assert each == pytest.approx([0.8] * 8)
    assert found["class"][1] == []


def test_a_speedup_of_few_prompts_is_told_without_an_interval() -> None:
    assert Speedup(1.4, None, 2).told == "1.40x"


def test_a_live_run_contradicts_beyond_the_interval_only(records: ModuleType) -> None:
    winner = records.record().candidates[2]
    assert not contradicted(winner)
    wrong = replace(
        winner.predicted, off_by=0.4, off_by_interval=Interval(1.3, 1.5, 0.95, "paired")
    )
    assert contradicted(replace(winner, predicted=wrong))
    assert not contradicted(replace(winner, predicted=wrong, live=None))
