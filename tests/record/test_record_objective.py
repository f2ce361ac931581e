"""An objective reads the same figure off sums and off single requests, and invents none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.record import Objective, PromptFigures, PromptRun
from cook.scoring.compare import figures

RUNS = tuple(
    PromptRun(f"p{i}", "a", 9, 5.0, 41 + i, 900.0 + i, 1000.0 + i, 60, 30 + i, None, "", "limit")
    for i in range(4)
)
BARE = tuple(replace(run, draft_n=None, draft_n_accepted=None) for run in RUNS)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_ratio_of_the_sums_is_the_figure(objective: Objective) -> None:
    parts = [objective.parts(run) for run in RUNS]
    top = sum(part[0] for part in parts if part)
    bottom = sum(part[1] for part in parts if part)
    per_ms = 1000 if objective.timed else 1
    assert objective.of(figures(RUNS)) == pytest.approx(per_ms * top / bottom)


@pytest.mark.parametrize("objective", list(Objective))
def test_no_draft_has_speeds_only(objective: Objective) -> None:
    bare = figures(BARE)
    assert (objective.of(bare) is not None) == objective.timed
    assert (objective.parts(BARE[0]) is not None) == objective.timed
    if not objective.timed:
        assert objective.why_none(bare).startswith("no draft has no ")


def test_what_does_not_exist_is_none() -> None:
    idle = figures([replace(run, draft_n=0, draft_n_accepted=0) for run in RUNS])
    assert Objective.ACCEPTANCE.of(idle) is None
    assert Objective.ACCEPTANCE.why_none(idle) == "it drafts nothing"
    assert Objective.ACCEPTANCE_LENGTH.of(idle) == 1.0
    short = figures([replace(run, predicted_n=1, predicted_ms=0.0) for run in BARE])
    for objective in Objective:
        assert objective.of(short) is None
        assert objective.why_none(short) == "no reply goes on after its first token"


def test_columns_are_those_that_a_record_keeps_of_every_prompt() -> None:
    known = {*PromptFigures.__dataclass_fields__, "cycles"}
    for objective in Objective:
        assert set(objective.columns) <= known
        assert objective.unit
