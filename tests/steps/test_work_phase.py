"""Every step of a build belongs to a phase."""

from __future__ import annotations

import importlib
import pkgutil
from inspect import isabstract

import cook.steps
from cook.graph.step import Step
from cook.steps.work import Phase


def test_every_step_has_a_phase_and_every_phase_a_step() -> None:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(cook.steps.__path__, "cook.steps.")
    ]
    steps = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Step) and not isabstract(kind)
    ]
    assert {kind.phase for kind in steps} == set(Phase)
