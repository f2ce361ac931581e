"""From replays to finalists: predict everything, calibrate on live runs, choose who goes live.

The choice is made on one half of the prompts and its figures are reported on the other
(winner's curse, docs/internals/scoring.md#choosing-and-reporting). Who goes live is told in
:mod:`cook.build.contest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cook.build.choose import Aim, Chosen, DecidingCost, beats_no_draft, rank
from cook.build.contest import Contest, Question, draft_files, of_other_files
from cook.build.fitting import Fitting
from cook.build.forecast import ChainForecast, Forecast, Forecaster
from cook.build.layout import Configuration, ForecastPlan, Layout
from cook.build.live_runs import LiveRuns
from cook.build.race import DraftKey, run_race
from cook.graph.execute import Executor
from cook.prompts.prompt_set import PromptSet
from cook.recipe.schema import ScoreSpec
from cook.record.measured import Calibration, Overheads
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Doubt, Excluded
from cook.scoring.noise import TimingNoise
from cook.scoring.rounds import Rounds
from cook.scoring.sampled import SampledPrediction
from cook.steps.live import LiveStep
from cook.steps.trace import RecordedTraceStep

RACE_SHARE = 0.2
"""Of the error probability, what the race may spend; the rest is shared by all looks at the live
runs, the first one and every further."""


@dataclass(frozen=True)
class Decision:
    """What was predicted of every candidate, what was chosen, and what the live runs made of it.

    ``reported`` are forecasts on the prompts that the choice did not see; ``predicted`` the choice
    by forecasts alone, ``final`` by all rounds in ``live``. ``finalists`` (and no draft,
    ``baselines``) come with the rounds that count; ``steps`` are all live steps that ran,
    ``fitted`` what came of the calibration by engine. ``look``: the confidence of one look at the
    live runs, as several share what was asked for.
    ``left_out`` is what the live budget had no room for. ``dropped`` are drafts that left the race,
    and ``silent`` engines of which nothing could be predicted, each with the reason.
    """

    reported: tuple[Forecast, ...]
    predicted: Chosen
    final: Chosen
    finalists: tuple[Configuration, ...]
    baselines: tuple[Configuration, ...]
    live: Rounds[CandidateKey]
    steps: tuple[LiveStep, ...]
    doubts: Mapping[CandidateKey, Doubt]
    cost: DecidingCost | None
    look: float
    left_out: tuple[Excluded, ...]
    fitted: Mapping[str, Calibration]
    noise: Mapping[str, EngineNoise]
    dropped: Mapping[DraftKey, str]
    silent: Mapping[str, str] = field(default_factory=dict)
    rejection: Mapping[CandidateKey, SampledPrediction] = field(default_factory=dict)
    """What rejection sampling would make of them; empty where the target is greedy."""
    chains: Mapping[str, tuple[ChainForecast, ...]] = field(default_factory=dict)
    """By engine, forecasts under the sampling chains beside the deployed one."""


@dataclass(frozen=True)
class EngineNoise:
    """The noise floor on one engine. ``acceptance``: standard deviation of one draft's in two
    batch shapes."""

    timing: TimingNoise | None
    acceptance: float | None


def decide(
    layouts: Sequence[Layout],
    prompts: PromptSet,
    score: ScoreSpec,
    aim: Aim,
    excluded: Sequence[Excluded],
    executor: Executor,
    again: str | None = None,
) -> Decision | None:
    """Trace, replay, time, predict, calibrate, choose, run live until that is decided or the
    budget is spent; None when nothing could be predicted.

    Of ``layouts`` every draft may win; ``excluded`` are those that may not. ``again`` names a
    candidate that runs live whatever is predicted of it, before any rival.
    """
    halves = _Halves.of(prompts)
    live = LiveRuns(executor, score.live_budget.minutes * 60)
    raced = any(m.forecast is not None and m.forecast.rounds > 1 for m in layouts)
    spent = RACE_SHARE * (1 - aim.confidence) if raced else 0.0
    opening = _Opening(layouts, halves, aim, 1 - spent, live)
    fittings = [f for layout in layouts if (f := opening.run(layout)) is not None]
    if not fittings:
        return None
    fitted = _calibrated(fittings, halves, live)
    told = {f.engine: _Told.of(f.forecaster, fitted[f.engine].overheads, halves) for f in fittings}
    reporting = tuple(forecast for one in told.values() for forecast in one.reporting)
    live.expected = _by_prompt(reporting)
    timings = [one.noise.timing for one in told.values() if one.noise.timing]
    question = Question(
        picking=tuple(forecast for one in told.values() for forecast in one.picking),
        aim=replace(aim, confidence=aim.confidence + spent),
        excluded=tuple(excluded),
        file_bytes={d.name: d.predicted_tensor_bytes for layout in layouts for d in layout.drafts},
        files=draft_files(layouts),
        timing=max(timings, key=lambda t: t.sd, default=None),
    )
    predicted = question.asked()
    left_out = [one for f in fittings for one in f.fit.left_out]
    contest = Contest(question, live, layouts, min(f.fit.rounds for f in fittings), again)
    contest.first(predicted, rival=all(f.fit.rival for f in fittings), left_out=left_out)
    final = contest.further()
    for excluded_one in left_out:
        executor.output.warn(f"{excluded_one.candidate}: {excluded_one.reason}")
    finalists, baselines = contest.shown(predicted, final)
    return Decision(
        reported=reporting,
        predicted=predicted,
        final=final,
        finalists=finalists,
        baselines=baselines,
        live=contest.rounds(),
        steps=tuple(live.steps),
        doubts=live.doubts,
        cost=contest.cost(final),
        look=contest.question.aim.confidence,
        left_out=tuple(left_out),
        fitted=fitted,
        noise={name: one.noise for name, one in told.items()},
        dropped=opening.dropped,
        silent=opening.silent,
        rejection={key: found for one in told.values() for key, found in one.rejection.items()},
        chains={name: one.chains for name, one in told.items() if one.chains},
    )


@dataclass(frozen=True)
class _Halves:
    """Ids of the prompts: a draft is chosen on some, and its figures are reported on the others."""

    pick: tuple[str, ...]
    report: tuple[str, ...]

    @classmethod
    def of(cls, prompts: PromptSet) -> _Halves:
        ids = {
            half: tuple(p.id for p in prompts.prompts if p.half == half)
            for half in ("pick", "report")
        }
        return cls(ids["pick"], ids["report"])


@dataclass
class _Opening:
    """Of one engine after the other: trace, replays, race, timings and the first live round.

    ``confidence``: of the race. ``dropped`` are drafts that left it, ``silent`` engines of which
    nothing can be predicted, each with the reason.
    """

    layouts: Sequence[Layout]
    halves: _Halves
    aim: Aim
    confidence: float
    live: LiveRuns
    dropped: dict[DraftKey, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    def run(self, layout: Layout) -> Fitting | None:
        """None where nothing is to be predicted, or nothing can be."""
        if layout.forecast is None:
            return None
        executor, aim = self.live.executor, self.aim
        executor.run(layout.forecast.opening())
        if short := Forecaster(layout.forecast, executor.outcomes).too_short():
            self.dropped |= {
                (d.draft.name, d.cache_type): short[d.draft.name]
                for d in layout.forecast.drafts
                if d.draft.name in short
            }
            layout = layout.without(short)
        if layout.forecast is None:
            self.silent[layout.engine.name] = next(iter(short.values()))
            return None
        forecaster = Forecaster(layout.forecast, executor.outcomes)
        self.live.forecasters[layout.engine.name] = forecaster
        self.dropped |= run_race(forecaster, aim.objective, aim.weights, self.confidence, executor)
        if layout.forecast.floor is not None:
            executor.run([layout.forecast.floor[1]])
        executor.run(forecaster.staying().elsewhere())
        forecasts = forecaster.forecasts(only=self.halves.pick)
        ranked = rank(forecasts, aim.objective, aim.weights)
        if not ranked:
            self.silent[layout.engine.name] = _why_silent(layout, executor)
            return None
        # Before anything is calibrated: bare forecasts say about how long live runs take.
        self.live.expected |= _by_prompt(forecaster.forecasts(only=self.halves.report))
        self.live.load_s = max(self.live.load_s, _load_s(layout.forecast, forecaster))
        # Of several engines' drafts it is not known yet which two are compared, and where none is
        # better than no draft, the best draft is its rival.
        leads = beats_no_draft(ranked[0], forecasts, aim.objective, aim.weights)
        compared = len(self.layouts) == 1 and leads
        rivals = of_other_files([f.key for f in ranked], [layout]) if compared else []
        share_s = self.live.budget_s / len(self.layouts)
        fitting = Fitting.of(
            layout, forecaster, ranked[0].key, next(iter(rivals), None), self.live, share_s
        )
        executor.run(fitting.steps())
        return fitting


def _calibrated(
    fittings: Sequence[Fitting], halves: _Halves, live: LiveRuns
) -> dict[str, Calibration]:
    """By engine, what is fitted on the first live rounds, which count from here on."""
    fitted = {f.engine: f.found(live) for f in fittings}
    for f in fittings:
        overheads = fitted[f.engine].overheads
        live.expected |= _by_prompt(f.forecaster.forecasts(overheads, halves.report))
    # What disturbed a round shows beside forecasts, and where one ran anew that one is fitted on.
    live.note([c for f in fittings for c in (*f.live, *f.beside)])
    return fitted | {f.engine: f.found(live) for f in fittings if f.ran_anew(live)}


@dataclass(frozen=True)
class _Told:
    """What one engine's forecasts say once overheads are fitted, of either half of the prompts."""

    picking: tuple[Forecast, ...]
    reporting: tuple[Forecast, ...]
    noise: EngineNoise
    rejection: Mapping[CandidateKey, SampledPrediction]
    chains: tuple[ChainForecast, ...]

    @classmethod
    def of(cls, forecaster: Forecaster, overheads: Overheads, halves: _Halves) -> _Told:
        return cls(
            picking=tuple(forecaster.forecasts(overheads, halves.pick)),
            reporting=tuple(forecaster.forecasts(overheads, halves.report)),
            noise=EngineNoise(
                forecaster.timing_noise(overheads, halves.pick),
                forecaster.acceptance_floor([*halves.pick, *halves.report]),
            ),
            rejection=forecaster.rejection(overheads, halves.report),
            chains=tuple(
                forecaster.under(chain, overheads, halves.pick, halves.report)
                for chain in forecaster.plan.chains
            ),
        )


def _by_prompt(forecasts: Sequence[Forecast]) -> dict[CandidateKey, dict[str, PromptRun]]:
    return {f.key: {run.id: run for run in f.runs} for f in forecasts}


def _load_s(plan: ForecastPlan, forecaster: Forecaster) -> float:
    """Seconds to load the target, about: what recording the trace took beyond its steps."""
    if isinstance(plan.trace, RecordedTraceStep):
        return 0.0
    bare = next((f for f in forecaster.forecasts() if f.key.draft is None), None)
    steps_s = sum(run.wall_ms for run in bare.runs) / 1000 if bare is not None else 0.0
    return max(0.0, forecaster.outcomes.artifact(plan.trace).seconds - steps_s)


def _why_silent(layout: Layout, executor: Executor) -> str:
    assert layout.forecast is not None, "asked only where something was to be predicted"
    for step in layout.forecast.steps():
        failure = executor.outcomes.failures.get(step.key)
        if failure is not None and failure.blocked_by is None:
            return failure.error.message
    return "nothing was replayed"


def reason_not_live(configuration: Configuration, decision: Decision | None) -> str:
    """Why a candidate of the layout has no live figures."""
    if decision is None or configuration.key.draft is None:
        return "not run"
    left = decision.dropped.get((configuration.key.draft, configuration.cache_type))
    return left or "predicted; not among the finalists"
