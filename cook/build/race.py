"""Racing drafts over shares of the prompts: those that cannot win are not replayed to the end.

Scores are paired by prompt, so only the spread of differences counts; every round spends its
part of the error probability (docs/internals/scoring.md#the-race).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cook.build.forecast import NO_OVERHEADS, Forecast, Forecaster
from cook.build.layout import DraftForecast
from cook.formats.arrays import Floats
from cook.graph.execute import Executor
from cook.record.measured import Overheads
from cook.record.objective import Objective
from cook.record.record import CandidateKey
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
    """Who goes on, given forecasts on the prompts ``seen``; drafts without one go on.

    What live runs take beyond the timings is not known yet. The time of a token is linear in it,
    so that who is behind one rival without any overhead, and behind that rival where a step has
    as much of it as a step of the target takes, is behind it whatever the overhead is.
    """
    running = replace(forecaster, plan=replace(forecaster.plan, drafts=tuple(alive)))
    plain = running.forecasts(only=seen)
    ends = [plain]
    if objective.timed and (step_s := _step_s(plain)) is not None:
        ends.append(running.forecasts(Overheads(plain_s=step_s, step_s=step_s), seen))
    slack = EPSILON
    if objective.timed and (noise := running.timing_noise(NO_OVERHEADS, seen)) is not None:
        slack = max(slack, TIMING_SPREADS * 2**0.5 * noise.of_median.sd)
    fields = [_Field.of(forecasts, objective, weights) for forecasts in ends]
    rules = RaceRules(
        rounds=forecaster.plan.rounds, delta=(1 - confidence) / len(fields), epsilon=slack
    )
    dropped: dict[DraftKey, str] = {}
    for leading in fields:
        if leading.leader is None:
            continue
        left = [field.behind(leading.leader, rules) for field in fields]
        for key in set.intersection(*left):
            lost = 1 - leading.value[key] / leading.value[_file(leading.leader)]
            dropped[key] = (
                f"left the race after {len(seen)} prompts: {lost:.1%} behind "
                f"{leading.best[_file(leading.leader)].name}"
            )
    return [d for d in alive if _key(d) not in dropped], dropped


def _step_s(forecasts: Sequence[Forecast]) -> float | None:
    """Seconds of a plain step of the target, as forecast."""
    bare = next((f for f in forecasts if f.key.draft is None), None)
    return 1 / bare.decode_speed if bare is not None else None


def _file(key: CandidateKey) -> DraftKey:
    assert key.draft is not None, "only drafts race; rivals cost nothing to look at"
    return key.draft, key.cache_type


@dataclass(frozen=True)
class _Field:
    """Every draft at its best setting, and all drafts at every one, at one size of overheads."""

    best: Mapping[DraftKey, Forecast]
    value: Mapping[DraftKey, float]
    every: Mapping[CandidateKey, Forecast]
    objective: Objective
    weights: Weights

    @classmethod
    def of(cls, forecasts: Sequence[Forecast], objective: Objective, weights: Weights) -> _Field:
        best: dict[DraftKey, Forecast] = {}
        value: dict[DraftKey, float] = {}
        drafting = {f.key: f for f in forecasts if f.key.is_file}
        for key, forecast in drafting.items():
            reached = objective.of(figures(forecast.runs, weights))
            file = _file(key)
            if reached is not None and (file not in best or reached > value[file]):
                best[file], value[file] = forecast, reached
        return cls(best, value, drafting, objective, weights)

    @property
    def leader(self) -> CandidateKey | None:
        """The best candidate; None where there is no rival."""
        if len(self.best) < 2:
            return None
        return self.best[max(self.value, key=lambda file: self.value[file])].key

    def behind(self, leader: CandidateKey, rules: RaceRules) -> set[DraftKey]:
        """Drafts whose best setting is surely behind the candidate ``leader``."""
        rivals = [file for file in self.best if file != _file(leader)]
        entered = [self.every[leader], *(self.best[file] for file in rivals)]
        measured = paired(
            {f.key: f.runs for f in entered},
            self.objective,
            self.weights,
        )
        if measured is None:
            return set()
        kept = survivors(relative_scores(measured), tuple(range(len(entered))), rules, lead=0)
        return {file for number, file in enumerate(rivals, 1) if number not in kept}


def relative_scores(measured: Measured[Any]) -> Floats:
    """[candidates, prompts] scores whose mean is 0 for the first of them.

    A prompt's score is its part of numerator - (the first's ratio) * denominator, so the mean is
    how far a candidate's whole (weighted) figure is behind, as a share of the first's.
    """
    parts = (measured.numerator - measured.ratios()[0] * measured.denominator) * measured.weight
    return np.asarray(parts / float((measured.numerator[0] * measured.weight).mean()))


def _key(draft: DraftForecast) -> DraftKey:
    return draft.draft.name, draft.cache_type
