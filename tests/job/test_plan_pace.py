"""How long steps take here that were never timed: by what this machine took for others."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cook.graph.step import READ_BYTES_S
from cook.graph.store import Artifact
from cook.job import plan as machine_pace
from cook.job.plan import FLOPS, MachinePace
from cook.steps.trace import TraceStep
from tests.job.fabricated import source
from tests.job.laid_out import layout

LAYOUT = layout()


def traced(size: int) -> Any:
    return replace(LAYOUT.forecast.trace, target=source("big", size), max_tokens=100)


def artifact(step: Any, seconds: float, **changes: Any) -> Artifact:
    engine = changes.pop("engine", step.key_parts["engine"]["digest"])
    parts = {**step.key_parts, "engine": {"digest": engine}}
    known: dict[str, Any] = {"kind": step.kind, "nominal_s": step.cost().nominal_s}
    known |= {"directory": Path("x"), "result": {}, "files": (), "made_from": {}}
    known |= dict.fromkeys(("key", "label", "created"), "x")
    return Artifact(**known | {"key_parts": parts, "seconds": seconds} | changes)


def test_a_machine_is_known_by_what_it_took() -> None:
    """Three times slower on a small model: so it will be on one a hundred times the size."""
    small, large = traced(10**8), traced(10**10)
    took = 3 * small.cost().nominal_s
    for changes, how in (
        ({}, "as this engine's here, by size"),
        ({"engine": "another"}, "as another engine's here, by size"),
        ({"kind": "control"}, "by size and other steps"),  # a kind that was never run
    ):
        pace = MachinePace.of([artifact(small, took, **changes)])
        seconds, why = pace.seconds(large, large.cost())
        assert seconds == pytest.approx(3 * large.cost().nominal_s)
        assert why == how
    made, unreckoned = artifact(small, took), artifact(small, took, nominal_s=None)
    assert MachinePace.of([unreckoned, made]) == MachinePace.of([made]), "it says nothing"


def test_before_anything_ran_the_memory_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_pace, "memory_bytes_s", lambda: READ_BYTES_S / 4)
    monkeypatch.setattr(machine_pace, "processor_flops", lambda: FLOPS / 2)
    cost = traced(10**10).cost()
    seconds, how = MachinePace.of([]).seconds(traced(10**10), cost)
    assert seconds == pytest.approx(cost.seconds(4.0, 2.0))
    assert 3.5 < (seconds or 0) / cost.nominal_s < 4.0
    assert how == "by size and a probe of this machine"


def test_the_probe_finds_a_plausible_machine() -> None:
    assert 1e8 < machine_pace.memory_bytes_s() < 1e13
    assert 1e8 < machine_pace.processor_flops() < 1e15


class _NoSize(TraceStep):
    def predicted_bytes(self) -> int:
        return 0


def test_what_no_header_tells_is_said() -> None:
    one = traced(1)
    without = _NoSize(*(getattr(one, f.name) for f in fields(one)))
    unknown = replace(LAYOUT.grid[0].live, draft=without)
    seconds, why = MachinePace({}, (1.0, 1.0), probed=True).seconds(unknown, unknown.cost())
    assert (seconds, why) == (None, "its size is known only when its inputs are there")
