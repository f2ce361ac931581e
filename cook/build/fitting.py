"""Overheads from the first live round of one engine, which forecasts are corrected by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cook.build.forecast import Forecaster
from cook.build.layout import (
    Configuration,
    Layout,
    dealt_into,
    interleaved,
    opening,
    other_lengths,
    shortened,
)
from cook.build.live_runs import LiveFit, LiveRuns, fit_budget
from cook.graph.execute import Executor
from cook.graph.step import Step
from cook.record.measured import Calibration
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey


@dataclass(frozen=True)
class Fitting:
    """The first live round of one engine, which overheads are fitted on.

    ``live``: no draft, the leader, and it at other lengths, since one length alone cannot tell
    what a step costs from what a drafted token costs. ``beside``: the closest rival, so that it
    needs no round of its own with the leader's once more; nothing is fitted on it. Other rounds
    wait for what these say: the leader may be another then. ``fit``: what of all this the live
    budget has room for.

    What is fitted is fitted on the first round's ``prompts`` alone, and where there is no other
    round on half of them (``halved``), so that forecasts are judged on others.
    """

    forecaster: Forecaster
    live: tuple[Configuration, ...]
    beside: tuple[Configuration, ...]
    prompts: frozenset[str]
    halved: bool
    fit: LiveFit

    @classmethod
    def of(
        cls,
        layout: Layout,
        forecaster: Forecaster,
        leader: CandidateKey,
        rival: CandidateKey | None,
        runs: LiveRuns,
        budget_s: float,
    ) -> Fitting:
        """Of ``budget_s`` seconds, what the ``runs`` so far say that they have room for."""
        assert layout.baseline is not None, "a forecast has a no draft to be compared with"
        fit = _live_fit(layout, runs, leader, budget_s)
        lengths = other_lengths(layout, leader) if fit.lengths else []
        live = [layout.baseline, *(c for c in layout.grid if c.key == leader)]
        beside = (c for c in layout.grid if c.key == rival and fit.rival)
        return cls(
            forecaster,
            (*(opening(c, fit.rounds) for c in live), *(shortened(c, 1) for c in lengths)),
            tuple(opening(c, fit.rounds) for c in beside),
            *fitted_on(shortened(layout.baseline, fit.rounds)),
            fit,
        )

    @property
    def engine(self) -> str:
        """Its name."""
        return self.forecaster.plan.engine.name

    def steps(self) -> list[Step[Any]]:
        """With the last pass of the timings between no draft and the drafts."""
        rounds = interleaved([*self.live, *self.beside])
        return [*rounds[:1], *self.forecaster.last_pass(), *rounds[1:]]

    def ran_anew(self, live: LiveRuns) -> bool:
        """Whether a round that is fitted on was measured again."""
        return any(live.ran(c) != c for c in self.live)

    def found(self, live: LiveRuns) -> Calibration:
        """By the rounds that count."""
        plan = self.forecaster.plan
        plain, *drafted = (
            {
                name: run
                for name, run in live_runs(live.ran(c), live.executor).items()
                if name in self.prompts
            }
            for c in self.live
        )
        drafting = self.live[1:]
        each = [(c.settings, runs) for c, runs in zip(drafting, drafted, strict=True) if c.settings]
        draft = next(d for d in plan.drafts if plan.is_of(d, drafting[0].key))
        return Calibration(
            engine=plan.engine.name,
            overheads=self.forecaster.fitted(plain, each, draft),
            candidates=tuple(c.name for c in self.live),
            prompts=tuple(sorted(self.prompts)),
            replies=len(plain) + sum(map(len, drafted)),
            halved=self.halved,
        )


def fitted_on(baseline: Configuration) -> tuple[frozenset[str], bool]:
    """Ids of the prompts that overheads are fitted on, and whether they are half of a round.

    The first round's; where every round has the same prompts, half of these. On the others
    forecasts are judged.
    """
    first = baseline.rounds[0].prompts
    halved = all(step.prompts == first for step in baseline.rounds)
    if halved:
        first = dealt_into(first, 2)[0]
    return frozenset(prompt.id for prompt in first), halved


def live_runs(configuration: Configuration, executor: Executor) -> dict[str, PromptRun]:
    """Prompt id -> the request of the first repeat, of the rounds that succeeded."""
    requests: dict[str, PromptRun] = {}
    for step in configuration.rounds:
        if outcome := executor.outcomes.result(step):
            requests = {run.id: run for run in outcome.runs} | requests
    return requests


def _live_fit(layout: Layout, live: LiveRuns, leader: CandidateKey, budget_s: float) -> LiveFit:
    """What of the usual live runs of one engine fits its share of the budget."""
    assert layout.baseline is not None, "a forecast has a no draft to be compared with"
    configuration = next(c for c in layout.grid if c.key == leader)
    return fit_budget(
        live.estimate([(leader, configuration.rounds[0])]),
        live.estimate([(layout.baseline.key, layout.baseline.rounds[0])]),
        len(configuration.rounds),
        len(other_lengths(layout, leader)),
        budget_s,
    )
