"""From replays to finalists: predict everything, calibrate on live runs, run the best live.

The finalists are chosen on one half of the prompts and run live on the other (winner's curse,
scoring.md section 3): the leader, its closest rival, and no draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cook.graph.execute import Executor
from cook.prompts.load import PromptSet
from cook.recipe.schema import ScoreSpec
from cook.report.figures import figures
from cook.report.intervals import SEED, paired
from cook.report.record import Figures
from cook.steps.forecast import Forecast, ForecastPlan, Oven, Overheads
from cook.steps.live import PromptRun
from cook.steps.menu import NO_DRAFT, Configuration, Menu

FINALISTS = 2
"""Drafting candidates confirmed live: the leader and its closest rival."""


@dataclass(frozen=True)
class Judged:
    """All forecasts on the half they are reported on, and who goes live.

    ``probability_best`` by candidate, resampled over the half they were chosen on.
    """

    reported: tuple[Forecast, ...]
    probability_best: Mapping[str, float]
    finalists: tuple[Configuration, ...]
    overheads: Overheads


def judge(
    menu: Menu,
    plan: ForecastPlan,
    prompts: PromptSet,
    score: ScoreSpec,
    maximize: str,
    executor: Executor,
) -> Judged | None:
    """Trace, replay, time, predict, calibrate; None when nothing could be predicted."""
    executor.run(plan.steps())
    oven = Oven(plan, executor.outcomes, menu.engine, score.max_tokens, score.context)
    chosen_on = [p for p in prompts.prompts if p.half == "pick"]
    first = oven.forecasts(Overheads(), chosen_on)
    ranked = rank(first, maximize, score.weights)
    if not ranked:
        return None
    overheads = _calibrate(menu, plan, oven, ranked[0], executor)
    forecasts = oven.forecasts(overheads, chosen_on)
    ranked = rank(forecasts, maximize, score.weights)
    reported = oven.forecasts(overheads, [p for p in prompts.prompts if p.half == "report"])
    names = [f.name for f in ranked[:FINALISTS]]
    finalists = tuple(c for name in names for c in menu.grid if c.name == name)
    return Judged(
        tuple(reported), _probabilities(forecasts, maximize, score.weights), finalists, overheads
    )


def rank(
    forecasts: Sequence[Forecast], maximize: str, weights: Mapping[str, float] | None
) -> list[Forecast]:
    """Drafting candidates, best first by the predicted figure."""
    drafting = [f for f in forecasts if f.draft is not None]
    return sorted(drafting, key=lambda f: -_value(figures(f.runs, weights), maximize))


def _value(found: Figures, maximize: str) -> float:
    if maximize == "end_to_end_speed":
        return found.end_to_end_speed
    if maximize == "decode_speed":
        return found.decode_speed
    if maximize == "acceptance":
        return found.acceptance_rate or 0.0
    return found.acceptance_length or 0.0


def _calibrate(
    menu: Menu, plan: ForecastPlan, oven: Oven, leader: Forecast, executor: Executor
) -> Overheads:
    """Overheads a step, from live rounds of no draft and of the leader."""
    configuration = next((c for c in menu.grid if c.name == leader.name), None)
    draft = next(
        (
            d
            for d in plan.drafts
            if d.draft.name == leader.draft and d.cache_type == leader.cache_type
        ),
        None,
    )
    if menu.baseline is None or configuration is None or draft is None or not leader.settings:
        return Overheads()
    executor.run(menu.live([configuration]))
    plain = _live(menu.baseline, executor)
    drafted = _live(configuration, executor)
    return oven.fitted(plain, drafted, draft, leader.settings)


def _live(configuration: Configuration, executor: Executor) -> dict[str, PromptRun]:
    found: dict[str, PromptRun] = {}
    for step in configuration.rounds:
        if outcome := executor.outcomes.result(step):
            found |= {run.id: run for run in outcome.runs}
    return found


def _probabilities(
    forecasts: Sequence[Forecast], maximize: str, weights: Mapping[str, float] | None
) -> dict[str, float]:
    import numpy as np

    from cook.speculation.statistics import verdict

    has_figure = [f for f in forecasts if f.draft is not None or "speed" in maximize]
    measured = paired({f.name: f.runs for f in has_figure}, maximize, weights)
    if measured is None:
        return {}
    return verdict(measured, np.random.default_rng(SEED)).probability


def reason_not_live(name: str) -> str:
    """Why a predicted candidate has no live figures."""
    return "predicted; not among the finalists" if name != NO_DRAFT else "not run"
