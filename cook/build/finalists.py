"""From replays to finalists: predict everything, calibrate on live runs, choose who goes live.

The choice is made on one half of the prompts and its figures are reported on the other
(winner's curse, docs/internals/scoring.md#choosing-and-reporting). Live go: the choice, its closest
rival of another draft file, and no draft, so that a prediction is always confronted with the real
server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cook.build.choose import Chosen, Maximize, figure_of
from cook.build.forecast import Forecast, Forecaster, Overheads
from cook.build.layout import Configuration, Layout, interleaved
from cook.build.race import DraftKey, run_race
from cook.graph.execute import Executor
from cook.prompts.prompt_set import PromptSet
from cook.recipe.schema import ScoreSpec
from cook.record.prompt_runs import PromptRun
from cook.record.record import Excluded
from cook.scoring.figures import figures
from cook.scoring.intervals import SEED, paired
from cook.scoring.noise import TimingNoise
from cook.scoring.sampled import SampledPrediction
from cook.steps.live import LiveStep

WITHIN = 0.01
"""The stopping rule: the leader is within this share of the best, at the confidence asked for."""

Disqualified = Callable[[str | None], str | None]
"""Reason why a draft (by name; None is no draft) may not win, or None."""


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
    rejection: Mapping[str, SampledPrediction] = field(default_factory=dict)
    """By name, what rejection sampling would make of them; empty where the target is greedy."""


@dataclass(frozen=True)
class EngineNoise:
    """The noise floor on one engine. ``acceptance``: of one draft in two batch shapes, signed."""

    timing: TimingNoise | None
    acceptance: float | None


def decide(
    layouts: Sequence[Layout],
    prompts: PromptSet,
    score: ScoreSpec,
    maximize: Maximize,
    confidence: float,
    disqualified: Disqualified,
    executor: Executor,
) -> Decision | None:
    """Trace, replay, time, predict, calibrate, choose; None when nothing could be predicted."""
    chosen_on = [p.id for p in prompts.prompts if p.half == "pick"]
    reported_on = [p.id for p in prompts.prompts if p.half == "report"]
    picking: list[Forecast] = []
    reporting: list[Forecast] = []
    overheads: dict[str, Overheads] = {}
    calibration: list[LiveStep] = []
    silent: dict[str, str] = {}
    noise: dict[str, EngineNoise] = {}
    dropped: dict[DraftKey, str] = {}
    rejection: dict[str, SampledPrediction] = {}
    for layout in layouts:
        if layout.forecast is None:
            continue
        executor.run(layout.forecast.opening())
        forecaster = Forecaster(
            layout, layout.forecast, executor.outcomes, score.max_tokens, score.context
        )
        dropped |= run_race(forecaster, maximize, score.weights, confidence, executor)
        if layout.forecast.floor is not None:
            executor.run([layout.forecast.floor[1]])
        ranked = rank(forecaster.forecasts(Overheads(), chosen_on), maximize, score.weights)
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
        picking, maximize, confidence, score.weights, disqualified, layouts, timing_sd=timing_sd
    )
    return Decision(
        reported=tuple(reporting),
        choice=choice,
        finalists=_finalists(choice, picking, layouts),
        overheads=overheads,
        calibration=tuple(calibration),
        noise=noise,
        dropped=dropped,
        silent=silent,
        rejection=rejection,
    )


def choose(
    forecasts: Sequence[Forecast],
    maximize: Maximize,
    confidence: float,
    weights: Mapping[str, float] | None,
    disqualified: Disqualified,
    layouts: Sequence[Layout],
    *,
    timing_sd: float = 0.0,
) -> Chosen:
    """The predicted pick among those that qualify; of those close to the best, the smallest file.

    ``timing_sd``: spread of a draft's log-speed that is owed to its timing; acceptance has none.
    """
    import numpy as np

    from cook.scoring.statistics import standings

    excluded = []
    runners = []
    for forecast in forecasts:
        reason = disqualified(forecast.draft)
        if reason is None and forecast.draft is None and "speed" not in maximize:
            reason = f"no draft has no {maximize.replace('_', ' ')}"
        found = figures(forecast.runs, weights)
        if reason is None and maximize == "acceptance" and not found.drafted:
            reason = "it drafts nothing"
        if reason is None and not found.tokens:
            reason = "no reply goes on after its first token"
        if reason is None:
            runners.append(forecast)
        else:
            excluded.append(Excluded(forecast.name, reason))
    measured = paired({f.name: f.runs for f in runners}, maximize, weights) if runners else None
    order = {f.name: -figure_of(figures(f.runs, weights), maximize) for f in runners}
    ranking = tuple(sorted(order, key=lambda name: order[name]))
    if measured is None:
        name = ranking[0] if ranking else None
        return Chosen(name, ranking, (), {}, None, WITHIN, tuple(excluded), prompts=0)
    # Settings of one draft are priced with the same measured times, so they err together.
    files = {(f.draft, f.cache_type): number for number, f in enumerate(runners)}
    told = standings(
        measured,
        np.random.default_rng(SEED),
        epsilon=WITHIN,
        confidence=confidence,
        timing_sd=timing_sd if "speed" in maximize else 0.0,
        timed_together=[files[f.draft, f.cache_type] for f in runners],
    )
    sizes = _file_bytes(layouts)
    draft_of = {f.name: f.draft for f in runners}
    name = min(told.close, key=lambda n: (sizes.get(draft_of[n], 0.0), ranking.index(n)))
    return Chosen(
        name=name,
        ranking=ranking,
        ties=tuple(n for n in ranking if n in told.ties and n != name),
        probability=told.probability,
        margin=told.margin,
        within=WITHIN,
        excluded=tuple(excluded),
        prompts=measured.prompts,
    )


def rank(
    forecasts: Sequence[Forecast], maximize: Maximize, weights: Mapping[str, float] | None
) -> list[Forecast]:
    """Drafting candidates, best first by the predicted figure."""
    drafting = [f for f in forecasts if f.draft is not None]
    return sorted(drafting, key=lambda f: -figure_of(figures(f.runs, weights), maximize))


def _finalists(
    choice: Chosen, forecasts: Sequence[Forecast], layouts: Sequence[Layout]
) -> tuple[Configuration, ...]:
    """The choice (the best draft where no draft is chosen) and the best of another file."""
    draft_of = {f.name: f.draft for f in forecasts}
    drafting = [name for name in choice.ranking if draft_of[name] is not None]
    if choice.name is not None and draft_of[choice.name] is not None:
        drafting.remove(choice.name)
        drafting.insert(0, choice.name)
    if not drafting:
        return ()
    first = drafting[0]
    others = [n for n in drafting[1:] if draft_of[n] != draft_of[first]] or drafting[1:]
    names = [first, *others[:1]]
    every = {c.name: c for layout in layouts for c in layout.grid}
    return tuple(every[name] for name in names if name in every)


def _file_bytes(layouts: Sequence[Layout]) -> dict[str | None, float]:
    """Size of each draft's tensors; no draft has none."""
    return {
        d.name: float("inf") if d.predicted_tensor_bytes is None else d.predicted_tensor_bytes
        for layout in layouts
        for d in layout.drafts
    }


def calibrate(
    layout: Layout, forecaster: Forecaster, leader: Forecast, executor: Executor
) -> tuple[Overheads, list[LiveStep]]:
    """Overheads from live rounds of no draft, of the leader, and of it at other lengths, and
    these rounds.

    The others are the nearest at most half and at least twice the leader's, a round of each: one
    length alone cannot tell what a cycle costs from what a drafted token costs. After the first
    round of each comes the last pass of the timings.
    """
    draft = next(
        (
            d
            for d in forecaster.plan.drafts
            if d.draft.name == leader.draft and d.cache_type == leader.cache_type
        ),
        None,
    )
    if layout.baseline is None or draft is None or leader.settings is None:
        executor.run(forecaster.plan.last_pass())
        return Overheads(), []
    mine = [
        c
        for c in layout.grid
        if c.draft is not None
        and (c.draft.name, c.cache_type) == (leader.draft, leader.cache_type)
        and c.settings is not None
        and replace(c.settings, n_max=leader.settings.n_max) == leader.settings
    ]
    n_max = leader.settings.n_max
    lengths = [(c.settings.n_max, c) for c in mine if c.settings]
    by_length = sorted(lengths, key=lambda pair: pair[0])
    shorter = [c for n, c in by_length if 2 * n <= n_max][-1:]
    longer = [c for n, c in by_length if n >= 2 * n_max][:1]
    chosen = [c for c in mine if c.name == leader.name]
    others = [replace(c, rounds=c.rounds[:1]) for c in (*shorter, *longer)]
    live = [layout.baseline, *chosen, *others]
    rounds = interleaved(live)
    executor.run([*rounds[: len(live)], *forecaster.plan.last_pass(), *rounds[len(live) :]])
    drafted = [(c.settings, live_runs(c, executor)) for c in (*chosen, *others) if c.settings]
    return forecaster.fitted(live_runs(layout.baseline, executor), drafted, draft), rounds


def live_runs(configuration: Configuration, executor: Executor) -> dict[str, PromptRun]:
    """Prompt id -> the request of the first repeat, of the rounds that succeeded."""
    found: dict[str, PromptRun] = {}
    for step in configuration.rounds:
        if outcome := executor.outcomes.result(step):
            found = {run.id: run for run in outcome.runs} | found
    return found


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
