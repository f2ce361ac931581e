"""An objective reads the same figure off sums and off single requests, and invents none; outcomes
that the store and records keep are read as they were written."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from cook.record.record import ControlOutcome, Objective, PromptFigures, PromptRun, RecountOutcome
from cook.scoring.compare import figures

RUNS = tuple(
    PromptRun(f"p{i}", "a", 9, 5.0, 41 + i, 900.0 + i, 1000.0 + i, 60, 30 + i, None, "", "limit")
    for i in range(4)
)
BARE = tuple(replace(run, draft_n=None, draft_n_accepted=None) for run in RUNS)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_ratio_of_the_sums_is_the_figure_and_no_draft_has_speeds_only(
    objective: Objective,
) -> None:
    top, bottom = map(sum, zip(*(objective.parts(run) or () for run in RUNS), strict=True))
    per_ms = 1000 if objective.timed else 1
    assert objective.of(figures(RUNS)) == pytest.approx(per_ms * top / bottom)
    assert set(objective.columns) <= {*PromptFigures.__dataclass_fields__, "cycles"}
    bare = figures(BARE)
    assert (objective.of(bare) is not None) == objective.timed
    assert (objective.parts(BARE[0]) is not None) == objective.timed
    if not objective.timed:
        assert objective.why_none(bare).startswith("no draft has no ")
    short = figures([replace(run, predicted_n=1, predicted_ms=0.0) for run in BARE])
    assert objective.of(short) is None
    assert objective.why_none(short) == "no reply goes on after its first token"


def test_what_drafts_nothing_has_no_acceptance() -> None:
    idle = figures([replace(run, draft_n=0, draft_n_accepted=0) for run in RUNS])
    assert Objective.ACCEPTANCE.of(idle) is None
    assert Objective.ACCEPTANCE.why_none(idle) == "it drafts nothing"
    assert Objective.ACCEPTANCE_LENGTH.of(idle) == 1.0


def test_outcomes_are_read_as_they_were_written() -> None:
    recount = RecountOutcome(4, 4, 90, 50, 91, 51, passed_over=1)
    assert TypeAdapter(RecountOutcome).validate_python(asdict(recount)) == recount
    control = ControlOutcome(5, 300, 1, 0.001, 0.02, 0.3, 0.01)
    counting_its_replies = asdict(control) | {"replies": 12}
    assert TypeAdapter(ControlOutcome).validate_python(counting_its_replies) == control
    assert control.near_tie_gap == 0.04
