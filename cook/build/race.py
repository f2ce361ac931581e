"""Racing drafts over shares of the prompts: those that cannot win are not replayed to the end.

Scores are paired by prompt, so only the spread of differences counts; every round spends its
part of the error probability (docs/internals/scoring.md#the-race).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cook.build.choose import Maximize, figure_of
from cook.build.forecast import Forecast, Forecaster, Overheads
from cook.build.layout import DraftForecast
from cook.formats.arrays import Floats
from cook.graph.execute import Executor
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
    maximize: Maximize,
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
        alive, left = _after_round(forecaster, alive, seen, maximize, weights, confidence)
        dropped |= left
        executor.run([draft.replays[number] for draft in alive])
        seen += plan.drafts[0].replays[number].prompts or ()
    return dropped


def _after_round(
    forecaster: Forecaster,
    alive: list[DraftForecast],
    seen: Sequence[str],
    maximize: Maximize,
    weights: Weights,
    confidence: float,
) -> tuple[list[DraftForecast], dict[DraftKey, str]]:
    """Who goes on, given forecasts on the prompts ``seen``; drafts without one go on."""
    running = replace(forecaster, plan=replace(forecaster.plan, drafts=tuple(alive)))
    best = _best_settings(running.forecasts(Overheads(), seen), maximize, weights)
    keys = list(best)
    names = [best[key].name for key in keys]
    runs = {best[key].name: best[key].runs for key in keys}
    measured = paired(runs, maximize, weights) if len(keys) > 1 else None
    if measured is None:
        return alive, {}
    scores, leader = relative_scores(measured)
    slack = EPSILON
    if "speed" in maximize and (noise := running.timing_noise(Overheads(), seen)) is not None:
        slack = max(slack, TIMING_SPREADS * 2**0.5 * noise.mean_sd)
    rules = RaceRules(rounds=forecaster.plan.rounds, delta=1 - confidence, epsilon=slack)
    kept = {keys[i] for i in survivors(scores, tuple(range(len(keys))), rules)}
    value = {name: figure_of(figures(runs[name], weights), maximize) for name in names}
    dropped = {
        key: f"left the race after {len(seen)} prompts: "
        f"{1 - value[name] / value[names[leader]]:.1%} behind {names[leader]}"
        for key, name in zip(keys, names, strict=True)
        if key not in kept
    }
    return [d for d in alive if _key(d) in kept or _key(d) not in best], dropped


def relative_scores(measured: Measured) -> tuple[Floats, int]:
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


def _best_settings(
    forecasts: Sequence[Forecast], maximize: Maximize, weights: Weights
) -> dict[DraftKey, Forecast]:
    """Of every draft and KV cache type, the forecast of its best setting."""
    best: dict[DraftKey, Forecast] = {}
    for forecast in forecasts:
        if forecast.draft is None:
            continue
        key = (forecast.draft, forecast.cache_type)
        value = figure_of(figures(forecast.runs, weights), maximize)
        if key not in best or value > figure_of(figures(best[key].runs, weights), maximize):
            best[key] = forecast
    return best
