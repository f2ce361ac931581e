"""From replays to finalists: predict everything, calibrate on live runs, choose who goes live.

The choice is made on one half of the prompts and its figures are reported on the other
(winner's curse, docs/internals/scoring.md#choosing-and-reporting). Live go: the choice, its closest
rival of another draft file, and no draft, so that a prediction is always confronted with the real
server; where no draft is the choice, its closest rival is the best draft. Where that leaves open
which is the best, those that may be it are measured further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cook.build.choose import (
    Aim,
    Chosen,
    DecidingCost,
    ForecastErrors,
    beats_no_draft,
    choose,
    rank,
)
from cook.build.forecast import MODEL, ChainForecast, Forecast, Forecaster
from cook.build.layout import (
    Configuration,
    ForecastPlan,
    Layout,
    dealt_into,
    interleaved,
    opening,
    other_lengths,
    shortened,
)
from cook.build.live_runs import LiveFit, LiveRuns, fit_budget
from cook.build.race import DraftKey, run_race
from cook.graph.execute import Executor
from cook.graph.step import Step
from cook.prompts.prompt_set import PromptSet
from cook.recipe.schema import ScoreSpec
from cook.record.measured import Calibration
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Excluded
from cook.scoring.figures import figures
from cook.scoring.noise import LogSpread, TimingNoise
from cook.scoring.rounds import Rounds
from cook.scoring.sampled import SampledPrediction
from cook.steps.live import LiveStep
from cook.steps.trace import RecordedTraceStep

RACE_SHARE = 0.2
"""Of the error probability, what the race may spend; the rest is shared by all looks at the live
runs, the first one and every further."""
FURTHER = 4
"""At most so many times are contenders measured further, each time on all prompts."""
CONTENDERS = 2
"""Rivals of the leader that are measured further at a time, the most promising first."""
PROMISING = 0.02
"""Chance of being the best from which a rival is worth a live run."""


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
    disturbed: Mapping[CandidateKey, str]
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
    """The noise floor on one engine. ``acceptance``: of one draft in two batch shapes, signed."""

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
    chosen_on = [p.id for p in prompts.prompts if p.half == "pick"]
    reported_on = [p.id for p in prompts.prompts if p.half == "report"]
    picking: list[Forecast] = []
    reporting: list[Forecast] = []
    fittings: list[_Fitting] = []
    fitted: dict[str, Calibration] = {}
    silent: dict[str, str] = {}
    noise: dict[str, EngineNoise] = {}
    dropped: dict[DraftKey, str] = {}
    rejection: dict[CandidateKey, SampledPrediction] = {}
    chains: dict[str, tuple[ChainForecast, ...]] = {}
    left_out: list[Excluded] = []
    live = LiveRuns(executor, score.live_budget.minutes * 60)
    fits: list[LiveFit] = []
    raced = any(m.forecast is not None and m.forecast.rounds > 1 for m in layouts)
    spent = RACE_SHARE * (1 - aim.confidence) if raced else 0.0
    final_confidence = aim.confidence + spent
    for layout in layouts:
        if layout.forecast is None:
            continue
        executor.run(layout.forecast.opening())
        if short := Forecaster(layout.forecast, executor.outcomes).too_short():
            dropped |= {
                (d.draft.name, d.cache_type): short[d.draft.name]
                for d in layout.forecast.drafts
                if d.draft.name in short
            }
            layout = layout.without(short)
        if layout.forecast is None:
            silent[layout.engine.name] = next(iter(short.values()))
            continue
        forecaster = live.forecasters[layout.engine.name] = Forecaster(
            layout.forecast, executor.outcomes
        )
        dropped |= run_race(forecaster, aim.objective, aim.weights, 1 - spent, executor)
        if layout.forecast.floor is not None:
            executor.run([layout.forecast.floor[1]])
        executor.run(forecaster.staying().elsewhere())
        forecasts = forecaster.forecasts(only=chosen_on)
        ranked = rank(forecasts, aim.objective, aim.weights)
        if not ranked:
            silent[layout.engine.name] = _why_silent(layout, executor)
            continue
        # Before anything is calibrated: bare forecasts say about how long live runs take.
        live.expected |= _by_prompt(forecaster.forecasts(only=reported_on))
        live.load_s = max(live.load_s, _load_s(layout.forecast, forecaster))
        fit = _live_fit(layout, live, ranked[0].key, live.budget_s / len(layouts))
        fits.append(fit)
        left_out += fit.left_out
        # Of several engines' drafts it is not known yet which two are compared, and where none is
        # better than no draft, the best draft is its rival.
        leads = beats_no_draft(ranked[0], forecasts, aim.objective, aim.weights)
        compared = len(layouts) == 1 and leads
        rivals = _of_other_files([f.key for f in ranked], [layout]) if compared else []
        rival = next(iter(rivals), None) if fit.rival else None
        fittings.append(_Fitting.of(layout, forecaster, ranked[0].key, fit, rival))
        executor.run(fittings[-1].steps())
    if not fittings:
        return None
    for one in fittings:
        found = fitted[one.forecaster.plan.engine.name] = one.found(live)
        live.expected |= _by_prompt(one.forecaster.forecasts(found.overheads, reported_on))
    # What disturbed a round shows beside forecasts, and where one ran anew that one is fitted on.
    live.note([c for one in fittings for c in (*one.live, *one.beside)])
    for one in fittings:
        forecaster, name = one.forecaster, one.forecaster.plan.engine.name
        if one.ran_anew(live):
            fitted[name] = one.found(live)
        overheads = fitted[name].overheads
        noise[name] = EngineNoise(
            forecaster.timing_noise(overheads, chosen_on),
            forecaster.acceptance_floor([*chosen_on, *reported_on]),
        )
        picking += forecaster.forecasts(overheads, chosen_on)
        reporting += forecaster.forecasts(overheads, reported_on)
        rejection |= forecaster.rejection(overheads, reported_on)
        if forecaster.plan.chains:
            chains[name] = tuple(
                forecaster.under(chain, overheads, chosen_on, reported_on)
                for chain in forecaster.plan.chains
            )
    live.expected = _by_prompt(reporting)
    timings = [n.timing for n in noise.values() if n.timing]
    noisiest = max(timings, key=lambda t: t.sd, default=None)
    question = _Question(
        picking=tuple(picking),
        aim=replace(aim, confidence=final_confidence),
        excluded=tuple(excluded),
        file_bytes={d.name: d.predicted_tensor_bytes for layout in layouts for d in layout.drafts},
        files=_files(layouts),
        timing=noisiest,
    )
    predicted = question.asked()
    contest = _Contest(question, live, layouts, min((f.rounds for f in fits), default=1), again)
    contest.first(predicted, rival=all(f.rival for f in fits), left_out=left_out)
    final = contest.further()
    for excluded_one in left_out:
        executor.output.warn(f"{excluded_one.candidate}: {excluded_one.reason}")
    finalists, baselines = contest.shown(predicted, final)
    return Decision(
        reported=tuple(reporting),
        predicted=predicted,
        final=final,
        finalists=finalists,
        baselines=baselines,
        live=contest.rounds(),
        steps=tuple(live.steps),
        disturbed=live.disturbed,
        cost=contest.cost(final),
        look=contest.question.aim.confidence,
        left_out=tuple(left_out),
        fitted=fitted,
        noise=noise,
        dropped=dropped,
        silent=silent,
        rejection=rejection,
        chains=chains,
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


@dataclass(frozen=True)
class _Question:
    """The choice, asked again with whatever ran live meanwhile."""

    picking: tuple[Forecast, ...]
    aim: Aim
    excluded: tuple[Excluded, ...]
    file_bytes: Mapping[str, int | None]
    files: Mapping[str, str]
    """By a draft's name, what tells its file."""
    timing: TimingNoise | None

    def asked(
        self,
        rounds: Rounds[CandidateKey] | None = None,
        model: LogSpread = MODEL,
        failed: Mapping[CandidateKey, str] | None = None,
    ) -> Chosen:
        """``failed``: what did not run live although it was asked to cannot win."""
        failed = failed or {}
        names = {f.key: f.name for f in self.picking}
        out = [Excluded(names[key], why) for key, why in failed.items() if key in names]
        return choose(
            [f for f in self.picking if f.key not in failed],
            self.aim,
            (*self.excluded, *out),
            self.file_bytes,
            errors=ForecastErrors(
                self.timing.of_median if self.timing else None, model, self.files
            ),
            live=rounds,
        )


@dataclass
class _Contest:
    """The finalists' live runs: first those of the prediction, then of whom it takes to decide.

    ``shares``: rounds that a configuration runs for its first live figures. ``again``: the name of
    one that runs live whatever is predicted of it.
    """

    question: _Question
    live: LiveRuns
    layouts: Sequence[Layout]
    shares: int
    again: str | None = None
    asked: dict[CandidateKey, Configuration] = field(default_factory=dict)
    """The drafting candidates that were asked to run live, in that order."""

    def first(self, predicted: Chosen, *, rival: bool, left_out: list[Excluded]) -> None:
        """The choice, what is run again, the best of another file, and no draft of every engine."""
        choice, *rivals = _finalists(predicted, self.layouts) or (None,)
        again = [c for layout in self.layouts for c in layout.grid if c.name == self.again]
        every = {c.key: c for c in (choice, *again, *(rivals if rival else ())) if c is not None}
        for configuration in every.values():
            wanted = shortened(configuration, self.shares)
            steps = [(wanted.key, step) for step in self.live.left_of(wanted).rounds]
            beside = [(c.key, step) for c in list(self.asked.values())[:1] for step in c.rounds]
            room = self.live.affords([*steps, *beside[: len(steps)]])
            if self.asked and steps and not room:
                left_out.append(Excluded(wanted.name, self._no_room(steps)))
                continue
            self.asked[wanted.key] = wanted
        running = [*self._baselines(()), *self.asked.values()]
        missing = [c for c in map(self.live.left_of, running) if c.rounds]
        # None alone in its round, or nothing would tell drift from difference.
        shares = [step.round for c in missing for step in c.rounds]
        alone = {share for share in shares if shares.count(share) == 1}
        before = [
            c
            for c in reversed(running)
            if alone.isdisjoint(step.round for step in self.live.left_of(c).rounds)
        ][:1]
        if self.question.aim.objective.timed:
            known = (
                replace(c, rounds=tuple(step for step in c.rounds if step.round in alone))
                for c in self.live.repeated(before)
            )
            missing = [*(c for c in known if c.rounds), *missing]
        if missing:
            self.live.run(missing)

    def further(self) -> Chosen:
        """The choice after as many further rounds as it takes, or as the budget allows."""
        looks = 1 + self._affordable()
        aim = self.question.aim
        self.question = replace(
            self.question, aim=replace(aim, confidence=1 - (1 - aim.confidence) / looks)
        )
        chosen = self._choice()
        for _ in range(looks - 1):
            if chosen.key is None or chosen.decided or not self._worth_it(chosen):
                break
            batch = self._batch(chosen)
            steps = [(c.key, step) for c in batch for step in c.rounds]
            if not self.live.affords(steps):
                break
            self.live.run(batch)
            chosen = self._choice()
        return chosen

    def shown(
        self, predicted: Chosen, final: Chosen
    ) -> tuple[tuple[Configuration, ...], tuple[Configuration, ...]]:
        """The finalists and no draft of every engine, with the rounds that count; the final
        choice and the predicted one first."""
        first = [key for key in (final.key, predicted.key) if key in self.asked]
        order = dict.fromkeys([*first, *self.asked])
        return (
            tuple(self.live.ran(self.asked[key]) for key in order if key is not None),
            tuple(self.live.ran(b) for b in self._baselines(())),
        )

    def rounds(self) -> Rounds[CandidateKey]:
        timing = self.question.timing
        aim = self.question.aim
        return self.live.of(aim.objective, aim.weights, timing.single if timing else None)

    def cost(self, chosen: Chosen) -> DecidingCost | None:
        """About what deciding would take; None where it is decided or no rounds would do it."""
        if chosen.key is None or chosen.decided or chosen.margin is None:
            return None
        rival = self._rival(chosen)
        if rival is None or chosen.key.ngram is not None or rival.ngram is not None:
            return None  # of draft-free speculation no live speed is believed
        aim = self.question.aim
        rounds = self.rounds().further(
            chosen.key, rival, chosen.gap[rival], aim.margin, aim.confidence
        )
        if rounds is None:
            return None
        batch = self._laid_out(chosen.key), self._laid_out(rival)
        one = [(c.key, c.rounds[0]) for c in (*batch, *self._baselines(batch)) if c is not None]
        return DecidingCost(rounds, rounds * self.live.estimate(one))

    def _choice(self) -> Chosen:
        failures = self.live.executor.outcomes.failures
        failed = {
            configuration.key: failures[step.key].error.message
            for configuration in (*self.asked.values(), *self._baselines(()))
            for step in configuration.rounds
            if step.key in failures
        }
        return self.question.asked(self.rounds(), self._model(), failed)

    def _model(self) -> LogSpread:
        """What forecasts were off by where live runs can judge them, beside what was known.

        Judged on rounds after the first, which nothing was fitted on.
        """
        errors = []
        for key in self.rounds().keys:
            if key.ngram is not None:
                continue  # its live speed hangs on what the server saw before
            told = self.live.expected.get(key, {})
            later = [run for r in self.live.rounds if r.share for run in r.runs.get(key, ())]
            common = [run for run in later if run.id in told]
            if common:
                seen = figures(common).decode_speed
                said = figures([told[run.id] for run in common]).decode_speed
                if seen and said:
                    errors.append(math.log(said / seen))
        if len(errors) < 2:
            return MODEL
        freedom = MODEL.freedom + len(errors) - 1
        squares = MODEL.freedom * MODEL.sd**2 + float(np.var(errors)) * len(errors)
        return LogSpread(math.sqrt(squares / freedom), freedom)

    def _rival(self, chosen: Chosen) -> CandidateKey | None:
        others = [key for key in chosen.ranking if key != chosen.key]
        return max(others, key=lambda key: chosen.probability.get(key, 0.0), default=None)

    def _worth_it(self, chosen: Chosen) -> bool:
        """Whether further rounds could decide at all: of prompts there are no more."""
        if chosen.margin is None or not self.question.aim.objective.timed:
            return False
        rival = self._rival(chosen)
        ran = chosen.key in self.live.counted and rival in self.live.counted
        return not ran or self.cost(chosen) is not None

    def _affordable(self) -> int:
        """Further times that the budget has room for, of a leader and a rival."""
        one = [
            (c.key, step)
            for c in (*list(self.asked.values())[:2], *self._baselines(()))
            for step in c.rounds
        ]
        seconds = self.live.estimate(one)
        room = self.live.budget_s - self.live.spent_s()
        return min(FURTHER, max(0, int(room / seconds))) if seconds else 0

    def _batch(self, chosen: Chosen) -> list[Configuration]:
        """The leader and the most promising rivals, beside no draft: those that never ran for
        the first time, the others once more."""
        assert chosen.key is not None, "there is a leader"
        rivals = [
            key
            for key in sorted(chosen.ranking, key=lambda key: -chosen.probability.get(key, 0.0))
            if key != chosen.key and chosen.probability.get(key, 0.0) >= PROMISING
        ]
        keys = [chosen.key, *rivals[:CONTENDERS]]
        wanted = [c for key in keys if (c := self._laid_out(key)) is not None]
        for configuration in wanted:
            self.asked.setdefault(configuration.key, configuration)
        return self._anew([*self._baselines(wanted), *wanted])

    def _anew(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """What never ran for the first time, all else repeated."""
        known = [c for c in configurations if c.key in self.live.counted]
        return [*self.live.repeated(known), *(c for c in configurations if c not in known)]

    def _baselines(self, beside: Sequence[Configuration | None]) -> list[Configuration]:
        """No draft of the engines of ``beside``; of all where that is empty."""
        engines = {c.key.engine for c in beside if c is not None}
        return [
            shortened(m.baseline, self.shares)
            for m in self.layouts
            if m.baseline is not None and (not engines or m.engine.name in engines)
        ]

    def _laid_out(self, key: CandidateKey) -> Configuration | None:
        """The configuration of a drafting candidate."""
        every = (c for layout in self.layouts for c in layout.grid)
        found = next((c for c in every if c.key == key), None)
        return shortened(found, self.shares) if found is not None else None

    def _no_room(self, steps: Sequence[tuple[CandidateKey, LiveStep]]) -> str:
        return (
            f"left out: its live runs take about {self.live.estimate(steps):.0f} s, and "
            f"score.live_budget is {self.live.budget_s / 60:g} minutes"
        )


def _files(layouts: Sequence[Layout]) -> dict[str, str]:
    """By a draft's name, what tells its file: several drafts may be of one."""
    return {draft.name: draft.model.key for layout in layouts for draft in layout.drafts}


def _of_other_files(keys: Sequence[CandidateKey], layouts: Sequence[Layout]) -> list[CandidateKey]:
    """Those of ``keys`` that are of another file than the first."""
    files = _files(layouts)
    first, *rest = [files.get(key.draft or "", key.draft) for key in keys]
    return [key for key, file in zip(keys[1:], rest, strict=True) if file != first]


def _finalists(choice: Chosen, layouts: Sequence[Layout]) -> tuple[Configuration, ...]:
    """The choice and the best of another file; where draft-free speculation is better than that, it
    too, for its counts. Where no draft is chosen, it is the best draft: no draft runs anyway."""
    drafting = [key for key in choice.ranking if key.draft is not None]
    if choice.key is not None and choice.key.draft is not None:
        drafting.remove(choice.key)
        drafting.insert(0, choice.key)
    if not drafting:
        return ()
    first, *rest = drafting
    if choice.key is not None and choice.key.draft is None:
        others = drafting
    else:
        others = _of_other_files(drafting, layouts) or rest
    beside = [*others[:1], *[key for key in others if key.ngram is None][:1]]
    every = {c.key: c for layout in layouts for c in layout.grid}
    return tuple(every[key] for key in dict.fromkeys((first, *beside)))


@dataclass(frozen=True)
class _Fitting:
    """The first live round of one engine, which overheads are fitted on.

    ``live``: no draft, the leader, and it at other lengths, since one length alone cannot tell
    what a step costs from what a drafted token costs. ``beside``: the closest rival, so that it
    needs no round of its own with the leader's once more; nothing is fitted on it. Other rounds
    wait for what these say: the leader may be another then.

    What is fitted is fitted on the first round's ``prompts`` alone, and where there is no other
    round on half of them (``halved``), so that forecasts are judged on others.
    """

    forecaster: Forecaster
    live: tuple[Configuration, ...]
    beside: tuple[Configuration, ...]
    prompts: frozenset[str]
    halved: bool

    @classmethod
    def of(
        cls,
        layout: Layout,
        forecaster: Forecaster,
        leader: CandidateKey,
        fit: LiveFit,
        rival: CandidateKey | None,
    ) -> _Fitting:
        """``fit`` is what the live budget has room for."""
        assert layout.baseline is not None, "a forecast has a no draft to be compared with"
        lengths = other_lengths(layout, leader) if fit.lengths else []
        live = [layout.baseline, *(c for c in layout.grid if c.key == leader)]
        beside = (c for c in layout.grid if c.key == rival)
        return cls(
            forecaster,
            (*(opening(c, fit.rounds) for c in live), *(shortened(c, 1) for c in lengths)),
            tuple(opening(c, fit.rounds) for c in beside),
            *fitted_on(shortened(layout.baseline, fit.rounds)),
        )

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
