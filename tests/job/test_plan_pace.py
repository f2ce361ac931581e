"""How long steps take here that were never timed: by what this machine took for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.graph.step import READ_BYTES_S
from cook.graph.store import Artifact
from cook.job import plan as machine_pace
from cook.job.plan import FLOPS, MachinePace
from cook.steps.trace import TraceStep
from tests.job.fabricated import source
from tests.job.laid_out import layout, score

LAYOUT = layout(score())


def traced(size: int, max_tokens: int = 100) -> TraceStep:
    found = LAYOUT.forecast
    assert isinstance(found.trace, TraceStep)
    return replace(found.trace, target=source("big", size), max_tokens=max_tokens)


def nominal(step: TraceStep) -> float:
    return step.cost().nominal_s


def artifact(
    step: Any, seconds: float, kind: str | None = None, engine: str | None = None
) -> Artifact:
    parts = dict(step.key_parts)
    if engine is not None:
        parts["engine"] = {**(parts["engine"] or {}), "digest": engine}
    return Artifact(
        directory=Path("x"),
        kind=kind or step.kind,
        key="k",
        label="l",
        key_parts=parts,
        result={},
        files=(),
        seconds=seconds,
        created="now",
        made_from={},
        nominal_s=nominal(step),
    )


def test_a_machine_is_known_by_what_it_took() -> None:
    """Three times slower on a small model: so it will be on one a hundred times the size."""
    small, large = traced(10**8), traced(10**10)
    took = 3 * (nominal(small) or 0)
    pace = MachinePace.of([artifact(small, took)])
    seconds, how = pace.seconds(large, large.cost())
    assert seconds == pytest.approx(3 * (nominal(large) or 0))
    assert how == "as this engine's here, by size"
    other = MachinePace.of([artifact(small, took, engine="another")])
    assert other.seconds(large, large.cost())[1] == "as another engine's here, by size"
    # A kind that was never run goes by all that were.
    kinds = MachinePace.of([artifact(small, took, kind="control")])
    assert kinds.seconds(large, large.cost())[0] == pytest.approx(3 * (nominal(large) or 0))
    assert kinds.seconds(large, large.cost())[1] == "by size and other steps"
    # Steps of which nothing was reckoned say nothing.
    monkey = replace(artifact(small, took), nominal_s=None)
    assert MachinePace.of([monkey, artifact(small, took)]).kinds == pace.kinds


def test_before_anything_ran_the_memory_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_pace, "memory_bytes_s", lambda: READ_BYTES_S / 4)
    monkeypatch.setattr(machine_pace, "processor_flops", lambda: FLOPS / 2)
    seconds, how = MachinePace.of([]).seconds(traced(10**10), traced(10**10).cost())
    cost = traced(10**10).cost()
    assert seconds == pytest.approx(cost.seconds(4.0, 2.0))
    assert seconds is not None
    assert 3.5 < seconds / cost.nominal_s < 4.0
    assert how == "by size and a probe of this machine"


def test_the_probe_finds_a_plausible_machine() -> None:
    assert 1e8 < machine_pace.memory_bytes_s() < 1e13
    assert 1e8 < machine_pace.processor_flops() < 1e15


def test_what_no_header_tells_is_said() -> None:
    step = replace(LAYOUT.grid[0].live, draft=traced(1))  # its size is not that of a model
    unknown = replace(step, draft=_NoSize(*_fields(traced(1))))
    seconds, why = MachinePace({}, (1.0, 1.0), probed=True).seconds(unknown, unknown.cost())
    assert seconds is None
    assert why == "its size is known only when its inputs are there"


class _NoSize(TraceStep):
    def predicted_bytes(self) -> int:
        return 0


def _fields(step: TraceStep) -> tuple[Any, ...]:
    from dataclasses import fields

    return tuple(getattr(step, f.name) for f in fields(step))
