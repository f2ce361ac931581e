"""Racing drafts over shares of the prompts: those that cannot win are not replayed to the end.

Scores are paired by prompt, so only the spread of differences counts; every round spends its
part of the error probability (docs/internals/scoring.md#the-race).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cook.build.forecast import NO_OVERHEADS, Forecast, Forecaster
from cook.build.layout import DraftForecast
from cook.formats.arrays import Floats
from cook.graph.execute import Executor
from cook.record.objective import Objective
from cook.scoring.figures import figures
from cook.scoring.intervals import paired
from cook.scoring.racing import RaceRules, survivors
from cook.scoring.statistics import Measured

EPSILON = 0.01
"""A draft stays while it may yet come within this share of the leader."""
TIMING_SPREADS = 3.0
"""Spreads of the difference of two timed speeds by which a draft may seem slower than it is."""

DraftKey = tuple[str, str | None]
"""A draft's name and the type of its KV cache."""
Weights = Mapping[str, float] | None


def run_race(
    forecaster: Forecaster,
    objective: Objective,
    weights: Weights,
    confidence: float,
    executor: Executor,
) -> dict[DraftKey, str]:
    """Replay the later rounds of the drafts that are still in the race.

    Returns the drafts that left, with the reason. The last round, on the prompts that figures
    are reported on, is nobody's exam.
    """
    plan = forecaster.plan
    dropped: dict[DraftKey, str] = {}
    alive = list(plan.drafts)
    seen: list[str] = list(plan.drafts[0].replays[0].prompts or ()) if plan.drafts else []
    for number in range(1, plan.rounds):
        alive, left = _after_round(forecaster, alive, seen, objective, weights, confidence)
        dropped |= left
        executor.run([draft.replays[number] for draft in alive])
        seen += plan.drafts[0].replays[number].prompts or ()
    return dropped


def _after_round(
    forecaster: Forecaster,
    alive: list[DraftForecast],
    seen: Sequence[str],
    objective: Objective,
    weights: Weights,
    confidence: float,
) -> tuple[list[DraftForecast], dict[DraftKey, str]]:
    """Who goes on, given forecasts on the prompts ``seen``; drafts without one go on."""
    running = replace(forecaster, plan=replace(forecaster.plan, drafts=tuple(alive)))
    best: dict[DraftKey, Forecast] = {}
    value: dict[DraftKey, float] = {}
    for forecast in running.forecasts(only=seen):
        if forecast.key.draft is None:
            continue
        key = (forecast.key.draft, forecast.key.cache_type)
        reached = objective.of(figures(forecast.runs, weights))
        if reached is not None and (key not in best or reached > value[key]):
            best[key], value[key] = forecast, reached
    keys = list(best)
    measured = (
        paired({key: best[key].runs for key in keys}, objective, weights) if keys[1:] else None
    )
    if measured is None:
        return alive, {}
    scores, leader = relative_scores(measured)
    slack = EPSILON
    if objective.timed and (noise := running.timing_noise(NO_OVERHEADS, seen)) is not None:
        slack = max(slack, TIMING_SPREADS * 2**0.5 * noise.mean_sd)
    rules = RaceRules(rounds=forecaster.plan.rounds, delta=1 - confidence, epsilon=slack)
    kept = {keys[i] for i in survivors(scores, tuple(range(len(keys))), rules)}
    ahead = keys[leader]
    dropped = {
        key: f"left the race after {len(seen)} prompts: "
        f"{1 - value[key] / value[ahead]:.1%} behind {best[ahead].name}"
        for key in keys
        if key not in kept
    }
    return [d for d in alive if _key(d) in kept or _key(d) not in best], dropped


def relative_scores(measured: Measured[Any]) -> tuple[Floats, int]:
    """[candidates, prompts] scores whose mean is 0 for the leader, and who leads.

    A prompt's score is its part of numerator - (leader's ratio) * denominator, so the mean is how
    far a candidate's whole (weighted) figure is behind, as a share of the leader's.
    """
    ratios = measured.ratios()
    leader = int(np.argmax(ratios))
    parts = (measured.numerator - ratios[leader] * measured.denominator) * measured.weight
    return parts / float((measured.numerator[leader] * measured.weight).mean()), leader


def _key(draft: DraftForecast) -> DraftKey:
    return draft.draft.name, draft.cache_type
