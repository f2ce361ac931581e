"""From replays to finalists: predict everything, calibrate on live runs, choose who goes live.

The choice is made on one half of the prompts and its figures are reported on the other
(winner's curse, docs/internals/scoring.md#choosing-and-reporting). Live go: the choice, its closest
rival of another draft file, and no draft, so that a prediction is always confronted with the real
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cook.build.choose import Chosen, choose, rank
from cook.build.forecast import Forecast, Forecaster, Overheads
from cook.build.layout import Configuration, Layout, interleaved
from cook.build.race import DraftKey, run_race
from cook.graph.execute import Executor
from cook.prompts.prompt_set import PromptSet
from cook.recipe.schema import ScoreSpec
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Excluded
from cook.scoring.noise import TimingNoise
from cook.scoring.sampled import SampledPrediction
from cook.steps.live import LiveStep


@dataclass(frozen=True)
class Decision:
    """What was predicted of every candidate, what was chosen, and who goes live.

    ``reported`` are forecasts on the prompts that the choice did not see; ``calibration`` the
    live rounds that overheads were fitted on; ``dropped`` are drafts that left the race, and
    ``silent`` engines of which nothing could be predicted, each with the reason.
    """

    reported: tuple[Forecast, ...]
    choice: Chosen
    finalists: tuple[Configuration, ...]
    overheads: Mapping[str, Overheads]
    calibration: tuple[LiveStep, ...]
    noise: Mapping[str, EngineNoise]
    dropped: Mapping[DraftKey, str]
    silent: Mapping[str, str] = field(default_factory=dict)
    rejection: Mapping[CandidateKey, SampledPrediction] = field(default_factory=dict)
    """What rejection sampling would make of them; empty where the target is greedy."""


@dataclass(frozen=True)
class EngineNoise:
    """The noise floor on one engine. ``acceptance``: of one draft in two batch shapes, signed."""

    timing: TimingNoise | None
    acceptance: float | None


def decide(
    layouts: Sequence[Layout],
    prompts: PromptSet,
    score: ScoreSpec,
    objective: Objective,
    confidence: float,
    excluded: Sequence[Excluded],
    executor: Executor,
) -> Decision | None:
    """Trace, replay, time, predict, calibrate, choose; None when nothing could be predicted.

    Of ``layouts`` every draft may win; ``excluded`` are those that may not.
    """
    chosen_on = [p.id for p in prompts.prompts if p.half == "pick"]
    reported_on = [p.id for p in prompts.prompts if p.half == "report"]
    picking: list[Forecast] = []
    reporting: list[Forecast] = []
    overheads: dict[str, Overheads] = {}
    calibration: list[LiveStep] = []
    silent: dict[str, str] = {}
    noise: dict[str, EngineNoise] = {}
    dropped: dict[DraftKey, str] = {}
    rejection: dict[CandidateKey, SampledPrediction] = {}
    for layout in layouts:
        if layout.forecast is None:
            continue
        executor.run(layout.forecast.opening())
        forecaster = Forecaster(layout.forecast, executor.outcomes)
        dropped |= run_race(forecaster, objective, score.weights, confidence, executor)
        if layout.forecast.floor is not None:
            executor.run([layout.forecast.floor[1]])
        ranked = rank(forecaster.forecasts(only=chosen_on), objective, score.weights)
        if not ranked:
            silent[layout.engine.name] = _why_silent(layout, executor)
            continue
        fitted, rounds = calibrate(layout, forecaster, ranked[0], executor)
        overheads[layout.engine.name] = fitted
        calibration += rounds
        noise[layout.engine.name] = EngineNoise(
            forecaster.timing_noise(fitted, chosen_on),
            forecaster.acceptance_floor([*chosen_on, *reported_on]),
        )
        picking += forecaster.forecasts(fitted, chosen_on)
        reporting += forecaster.forecasts(fitted, reported_on)
        rejection |= forecaster.rejection(fitted, reported_on)
    if not picking:
        return None
    timing_sd = max((n.timing.mean_sd for n in noise.values() if n.timing), default=0.0)
    choice = choose(
        picking,
        objective,
        confidence,
        score.weights,
        excluded,
        {d.name: d.predicted_tensor_bytes for layout in layouts for d in layout.drafts},
        timing_sd=timing_sd,
    )
    return Decision(
        reported=tuple(reporting),
        choice=choice,
        finalists=_finalists(choice, layouts),
        overheads=overheads,
        calibration=tuple(calibration),
        noise=noise,
        dropped=dropped,
        silent=silent,
        rejection=rejection,
    )


def _finalists(choice: Chosen, layouts: Sequence[Layout]) -> tuple[Configuration, ...]:
    """The choice (the best draft where no draft is chosen) and the best of another file."""
    drafting = [key for key in choice.ranking if key.draft is not None]
    if choice.key is not None and choice.key.draft is not None:
        drafting.remove(choice.key)
        drafting.insert(0, choice.key)
    if not drafting:
        return ()
    first, *rest = drafting
    others = [key for key in rest if key.draft != first.draft] or rest
    every = {c.key: c for layout in layouts for c in layout.grid}
    return tuple(every[key] for key in (first, *others[:1]))


def calibrate(
    layout: Layout, forecaster: Forecaster, leader: Forecast, executor: Executor
) -> tuple[Overheads, list[LiveStep]]:
    """Overheads from live rounds of no draft, of the leader, and of it at other lengths, and
    these rounds.

    The others are the nearest at most half and at least twice the leader's, a round of each: one
    length alone cannot tell what a cycle costs from what a drafted token costs. After the first
    round of each comes the last pass of the timings.
    """
    key, settings = leader.key, leader.key.settings
    draft = next(
        d
        for d in forecaster.plan.drafts
        if (d.draft.name, d.cache_type) == (key.draft, key.cache_type)
    )
    assert layout.baseline is not None, "a forecast has a no draft to be compared with"
    assert settings is not None, "a draft has settings"
    alike = {
        c.settings.n_max: c
        for c in layout.grid
        if c.settings is not None
        and c.key == replace(key, settings=c.settings)
        and replace(c.settings, n_max=settings.n_max) == settings
    }
    shorter = sorted(n for n in alike if 2 * n <= settings.n_max)[-1:]
    longer = sorted(n for n in alike if n >= 2 * settings.n_max)[:1]
    chosen = alike[settings.n_max]
    others = [replace(alike[n], rounds=alike[n].rounds[:1]) for n in (*shorter, *longer)]
    live = [layout.baseline, chosen, *others]
    rounds = interleaved(live)
    executor.run([*rounds[: len(live)], *forecaster.plan.last_pass(), *rounds[len(live) :]])
    drafted = [(c.settings, live_runs(c, executor)) for c in (chosen, *others) if c.settings]
    return forecaster.fitted(live_runs(layout.baseline, executor), drafted, draft), rounds


def live_runs(configuration: Configuration, executor: Executor) -> dict[str, PromptRun]:
    """Prompt id -> the request of the first repeat, of the rounds that succeeded."""
    requests: dict[str, PromptRun] = {}
    for step in configuration.rounds:
        if outcome := executor.outcomes.result(step):
            requests = {run.id: run for run in outcome.runs} | requests
    return requests


def _why_silent(layout: Layout, executor: Executor) -> str:
    assert layout.forecast is not None, "asked only where something was to be predicted"
    for step in layout.forecast.steps():
        failure = executor.outcomes.failures.get(step.key)
        if failure is not None and failure.blocked_by is None:
            return failure.error.message
    return "nothing was replayed"


def reason_not_live(configuration: Configuration, decision: Decision | None) -> str:
    """Why a candidate of the layout has no live figures."""
    if decision is None or configuration.draft is None:
        return "not run"
    left = decision.dropped.get((configuration.draft.name, configuration.cache_type))
    return left or "predicted; not among the finalists"
