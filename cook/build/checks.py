"""What is asked of a finalist's live run beside its speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cook.build.forecast import PROFILES
from cook.build.layout import Configuration, Layout
from cook.graph.step import Step
from cook.scoring.simulate import Profile
from cook.steps.control import ControlStep
from cook.steps.recount import SelfCheckStep

BENCH_PROFILE = Profile.IK_SPEC_BENCH_2026_08


@dataclass(frozen=True)
class Checks:
    """What is asked of a finalist's live run beside its speed.

    ``counts``: that our accounting is the engine's; ``control``: what batch width alone changes
    (greedy traces only, for others no token is the target's only choice).
    """

    counts: SelfCheckStep
    control: ControlStep | None

    def steps(self) -> list[Step[Any]]:
        return [self.counts, *([self.control] if self.control else [])]


def checks_of(layout: Layout, configuration: Configuration) -> Checks | None:
    """The checks of one finalist of ``layout``; None for no draft, or where nothing was replayed."""
    plan, draft, settings = layout.forecast, configuration.draft, configuration.settings
    if plan is None or draft is None or settings is None or layout.target is None:
        return None
    live = configuration.rounds[0]
    control = None
    if not live.sampling.temperature:
        control = ControlStep(
            layout.engine, layout.target, live.target_args, plan.trace, settings.n_max + 1
        )
    counts = SelfCheckStep(
        engine=layout.engine,
        name=configuration.name,
        draft=draft.model,
        args=live.draft_args.as_draft_of(live.target_args),
        settings=settings,
        profile=PROFILES[layout.engine.flavour] if live.tool == "server" else BENCH_PROFILE,
        trace=plan.trace,
        live=live,
    )
    return Checks(counts, control)


def checks_of_all(layouts: Sequence[Layout], grid: Sequence[Configuration]) -> list[Checks]:
    """The checks of every finalist, each on its own engine."""
    by_engine = {layout.engine.name: layout for layout in layouts}
    found = [checks_of(by_engine[c.rounds[0].engine.name], c) for c in grid]
    return [checks for checks in found if checks is not None]
