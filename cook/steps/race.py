"""Racing drafts over shares of the prompts: those that cannot win are not replayed to the end.

Scores are paired by prompt, so only the spread of differences counts; every round spends its
part of the error probability (scoring.md section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cook.graph.execute import Executor
from cook.report.figures import figures
from cook.speculation.racing import RaceRules, survivors
from cook.steps.choose import Maximize, figure_of
from cook.steps.forecast import DraftForecast, Forecast, Oven, Overheads
from cook.steps.live import PromptRun

EPSILON = 0.01
"""A draft stays while it may yet come within this share of the leader."""


def run_race(
    oven: Oven, maximize: Maximize, confidence: float, executor: Executor
) -> dict[str, str]:
    """Replay the later rounds of the drafts that are still in the race.

    Returns the drafts that left, with the reason. The last round, on the prompts that figures
    are reported on, is nobody's exam.
    """
    plan = oven.plan
    dropped: dict[str, str] = {}
    alive = list(plan.drafts)
    seen: list[str] = list(plan.drafts[0].replays[0].prompts or ()) if plan.drafts else []
    for number in range(1, plan.rounds):
        if number < plan.rounds:
            alive, left = _after_round(oven, alive, seen, maximize, confidence)
            dropped |= left
        executor.run([draft.replays[number] for draft in alive])
        seen += plan.drafts[0].replays[number].prompts or ()
    return dropped


def _after_round(
    oven: Oven,
    alive: list[DraftForecast],
    seen: Sequence[str],
    maximize: Maximize,
    confidence: float,
) -> tuple[list[DraftForecast], dict[str, str]]:
    """Who goes on, given forecasts on the prompts ``seen``; drafts without one go on."""
    running = replace(oven, plan=replace(oven.plan, drafts=tuple(alive)))
    best = _best_settings(running.forecasts(Overheads(), seen), maximize)
    names = list(best)
    if len(names) < 2:
        return alive, {}
    scores = np.array([[_score(run, maximize) for run in best[n].runs] for n in names])
    leader = int(np.argmax(scores.mean(axis=1)))
    scores = scores / abs(scores[leader].mean())
    rules = RaceRules(rounds=oven.plan.rounds, delta=1 - confidence, epsilon=EPSILON)
    kept = {names[i] for i in survivors(scores, tuple(range(len(names))), rules)}
    lead = figure_of(figures(best[names[leader]].runs), maximize)
    dropped = {
        draft: f"left the race after {len(seen)} prompts: "
        f"{1 - figure_of(figures(best[(draft, kind)].runs), maximize) / lead:.1%} behind "
        f"{names[leader][0]}"
        for draft, kind in names
        if (draft, kind) not in kept
    }
    return [d for d in alive if (d.draft.name, d.cache_type) in kept or _unknown(d, best)], dropped


def _unknown(draft: DraftForecast, best: Mapping[tuple[str, str | None], Forecast]) -> bool:
    return (draft.draft.name, draft.cache_type) not in best


def _best_settings(
    forecasts: Sequence[Forecast], maximize: Maximize
) -> dict[tuple[str, str | None], Forecast]:
    """Of every draft and KV cache type, the forecast of its best setting."""
    best: dict[tuple[str, str | None], Forecast] = {}
    for forecast in forecasts:
        if forecast.draft is None:
            continue
        key = (forecast.draft, forecast.cache_type)
        value = figure_of(figures(forecast.runs), maximize)
        if key not in best or value > figure_of(figures(best[key].runs), maximize):
            best[key] = forecast
    return best


def _score(run: PromptRun, maximize: Maximize) -> float:
    """One prompt's score, higher is better; speeds by time a token, whose mean is harmonic."""
    tokens = max(run.predicted_n - 1, 1)
    if maximize == "end_to_end_speed":
        return -run.wall_ms / tokens
    if maximize == "decode_speed":
        return -run.predicted_ms / tokens
    if maximize == "acceptance":
        return (run.draft_n_accepted or 0) / max(run.draft_n or 0, 1)
    return tokens / max(run.cycles or 1, 1)
