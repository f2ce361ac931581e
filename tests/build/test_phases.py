"""Every kind of step belongs to a phase."""

from __future__ import annotations

from cook.build import reckon
from cook.build.phases import Phase, phase_of


def test_every_step_has_a_phase_and_every_phase_a_step() -> None:
    kinds = (getattr(step, "kind") for step in reckon._RULES)  # noqa: B009
    assert {phase_of(kind) for kind in kinds} == set(Phase)
