"""From replays to the pick: forecast everything, deal prompts to the finalists, name the fastest.

A forecast is a filter: it says who is worth a live run. Those that are get the same prompts at the
same moment (:mod:`cook.job.dealing`), and after every pass over the prompts
:func:`cook.scoring.compare.standings` judges the leader against every candidate, those included
that did not run. It ends when no other can be better by more than the margin, or with the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cook.engines.base import Engine
from cook.graph.execute import Executor
from cook.graph.step import Step
from cook.job.dealing import Dealing, fit_together
from cook.job.forecast import Forecaster
from cook.job.layout import Configuration, ForecastPlan, Layout
from cook.prompts.prompt_set import Prompt, PromptSet
from cook.provenance import machine
from cook.recipe.schema import ScoreSpec
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey, Excluded, Factors
from cook.scoring.compare import Row, Standings, common, log_ratio, standings
from cook.scoring.figures import figures
from cook.scoring.price import Forecast
from cook.steps.trace import RecordedTraceStep

MOST_LOOKS = 5
"""Times that the standings may end the dealing; the error probability is split over them."""
PROMISING = 0.02
"""Chance of being the best from which a candidate is worth prompts."""
DECODE, WHOLE = Objective.DECODE_SPEED, Objective.END_TO_END_SPEED
FILES, HOPEFUL = 3, 0.002
"""Draft files of which one candidate each is in the first block: two in any case, which tells how
far forecasts of files are off, and a third that has any chance."""


@dataclass(frozen=True)
class Aim:
    """What a recipe's ``pick`` asks for. ``margin``: share of the figure that a smaller file may
    be worse by, and by which the best must be known."""

    objective: Objective
    confidence: float = 0.95
    margin: float = 0.01
    weights: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Decision:
    """What was forecast of every candidate, what the dealing came to, and who is picked.

    ``forecasts`` are over all prompts, without anything fitted to live runs. ``rows``: the one
    table, forecast and live requests of every candidate. ``look``: the confidence of one look at
    the standings. ``seconds_to_decide``: about, where it is not decided. ``dropped``: drafts that
    could not be replayed, and ``silent`` engines of which nothing was predicted, with the reason.
    ``acceptance_sd``: by engine, of one draft's acceptance between two batch shapes.
    """

    forecasts: tuple[Forecast, ...]
    rows: tuple[Row[CandidateKey], ...]
    standings: Standings[CandidateKey] | None
    pick: CandidateKey | None
    decided: bool
    look: float
    dealing: Dealing
    finalists: tuple[Configuration, ...]
    baselines: tuple[Configuration, ...]
    seconds_to_decide: float | None
    left_out: tuple[Excluded, ...]
    excluded: tuple[Excluded, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    acceptance_sd: Mapping[str, float | None] = field(default_factory=dict)
    looks: int = 1
    base: Row[CandidateKey] | None = None
    """No draft, the fastest of any engine: what speedups are over."""
    checks: tuple[Step[Any], ...] = ()
    """Steps that check the counts and outputs of the finalists."""
    forecasters: Mapping[str, Forecaster] = field(default_factory=dict)
    """By engine; each reads a replay once, whoever asks."""

    def row(self, key: CandidateKey) -> Row[CandidateKey] | None:
        """That of the table."""
        return next((row for row in self.rows if row.key == key), None)

    @property
    def ranking(self) -> tuple[CandidateKey, ...]:
        """Best first, those that ran and those that did not."""
        found = self.standings
        return tuple(sorted(found.value, key=lambda k: -found.value[k])) if found else ()

    def factor(self, engine: str) -> float:
        """Live over forecast decode time of what ran on ``engine``; 1 where nothing did."""
        live = said = 0.0
        for row in self.rows:
            forecast = {run.id: run for run in row.forecast}
            for run in row.live:
                if row.key.engine == engine and row.key.ngram is None and run.id in forecast:
                    live += run.predicted_ms
                    said += forecast[run.id].predicted_ms
        return live / said if said else 1.0

    def factors(self) -> tuple[Factors, ...]:
        """Of every engine, what its drafts' live speedups are of those forecast."""
        found = []
        for engine in dict.fromkeys(row.key.engine for row in self.rows):
            bare = self.row(CandidateKey(engine))
            off: list[tuple[float, float]] = []
            for row in self.rows:
                if bare is not None and row.key.engine == engine and row.key.is_file and row.live:
                    each = [_off(row, bare, one) for one in (DECODE, WHOLE)]
                    if each[0] is not None and each[1] is not None:
                        off.append((each[0], each[1]))
            if off:
                decode, whole = (math.exp(sum(o[i] for o in off) / len(off)) for i in (0, 1))
                found.append(Factors(engine, decode, whole, len(off)))
        return tuple(found)


def _off(row: Row[CandidateKey], bare: Row[CandidateKey], objective: Objective) -> float | None:
    """Log of a live speedup over that forecast, on the requests that both were dealt."""
    pairs = common(row.live, bare.live)
    ids = {mine.id for mine, _ in pairs}
    live = log_ratio([a for a, _ in pairs], [b for _, b in pairs], objective)
    mine, theirs = ([r for r in one.forecast if r.id in ids] for one in (row, bare))
    said = log_ratio(mine, theirs, objective)
    return live - said if live is not None and said is not None else None


def decide(
    layouts: Sequence[Layout],
    prompts: PromptSet,
    score: ScoreSpec,
    aim: Aim,
    excluded: Sequence[Excluded],
    executor: Executor,
    file_bytes: Mapping[str, int | None],
    again: str | None = None,
    reference: Mapping[str, Engine] | None = None,
) -> Decision:
    """Trace, replay, time, forecast, deal, and pick.

    Of ``layouts`` every draft may win; ``excluded`` are those that may not. ``again`` names a
    candidate that is dealt every prompt whatever is forecast of it; ``reference``: by engine
    another build of it, on which all that is dealt is dealt as well.
    """
    contest = _Contest(prompts, score, aim, executor, again)
    for layout in layouts:
        contest.add(layout)
    contest.run(reference or {})
    return contest.decision(excluded, file_bytes)


@dataclass
class _Contest:
    """Forecasts of all, then blocks of prompts to those that may yet win.

    ``layouts`` are without the drafts that were ``dropped``, ``grid`` holds who may win, and
    ``unforecast`` those without a forecast on an engine where others have one.
    """

    prompts: PromptSet
    score: ScoreSpec
    aim: Aim
    executor: Executor
    again: str | None
    layouts: list[Layout] = field(default_factory=list)
    forecasters: dict[str, Forecaster] = field(default_factory=dict)
    forecasts: dict[CandidateKey, Forecast] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    load_s: float = 0.0
    bare: list[Configuration] = field(default_factory=list)
    grid: dict[CandidateKey, Configuration] = field(default_factory=dict)
    unforecast: list[Configuration] = field(default_factory=list)
    left_out: list[Excluded] = field(default_factory=list)
    looks: int = 1
    blocks: int = 1

    def add(self, layout: Layout) -> None:
        """Replay, time and forecast the drafts of one engine."""
        if layout.forecast is not None:
            self.executor.run(layout.forecast.steps())
            short = Forecaster(layout.forecast, self.executor.outcomes).too_short()
            self.dropped |= short
            layout = layout.without(short)
            forecasts: list[Forecast] = []
            if layout.forecast is None:
                self.silent[layout.engine.name] = next(iter(short.values()))
            else:
                forecaster = Forecaster(layout.forecast, self.executor.outcomes)
                self.forecasters[layout.engine.name] = forecaster
                forecasts = forecaster.forecasts()
                if forecasts:
                    load_s = _load_s(layout.forecast, forecaster, forecasts)
                    self.load_s = max(self.load_s, load_s)
                else:
                    why = self._failure(layout.forecast.steps()) or "nothing was replayed"
                    self.silent[layout.engine.name] = why
            self.forecasts |= {one.key: one for one in forecasts}
        self.layouts.append(layout)
        if layout.baseline is not None:
            self.bare.append(layout.baseline)
        engine_has_forecasts = any(key.engine == layout.engine.name for key in self.forecasts)
        for c in layout.grid:
            lost = c.draft is not None and c.draft.name in self.dropped
            if lost or (engine_has_forecasts and c.key not in self.forecasts):
                self.unforecast.append(c)
            else:
                self.grid[c.key] = c

    def _failure(self, steps: Iterable[Step[Any]]) -> str | None:
        """Why the first of ``steps`` failed that did not wait for another."""
        failures = self.executor.outcomes.failures
        found = (failures[s.key] for s in steps if s.key in failures)
        return next((f.error.message for f in found if f.blocked_by is None), None)

    def run(self, reference: Mapping[str, Engine]) -> None:
        """Pass after pass over the prompts; n-grams, whose servers remember, in a block of their
        own after the first."""
        expected = {key: {r.id: r for r in f.runs} for key, f in self.forecasts.items()}
        budget_s = self.score.live_budget.minutes * 60
        self.dealing = Dealing(self.executor, True, budget_s, expected, self.load_s, reference)
        self.dealing.together = fit_together(self._seated(), machine().memory_bytes)
        order = self.prompts.prompts
        first = self._seated()
        blocks = self.dealing.blocks(order, first)
        if any(c.key not in self.forecasts for c in self.grid.values()):
            blocks = (order,)  # groups of candidates of which nothing is known, each on all prompts
        self.blocks = len(blocks)
        number = 0
        while number == 0 or number < self.looks:
            for place, block in enumerate(blocks):
                if not self._block(block, must=number < self.score.repeats):
                    if number == 0:
                        self._leave_prompts_out(sum(map(len, blocks[place:])))
                    return
            if number == 0:
                self._unknown(order)
                self._remembering(order)
                self.looks = self._affordable(blocks)  # fixed before the first look
            number += 1
            if number >= self.score.repeats and self._over():
                return

    def _affordable(self, blocks: Sequence[Sequence[Prompt]]) -> int:
        """Passes over the prompts that the budget has room for, whole or begun, if no draft, the
        leader and a rival are left, as they are as a rule."""
        seated = self._seated()[: len(self.bare) + 2]
        block_s = max((self.dealing.estimate(seated, block) for block in blocks), default=0.0)
        more = int(max(0.0, self.dealing.left_s()) / block_s) if block_s else 0
        passes = 1 + math.ceil(more / len(blocks))
        return max(self.score.repeats, min(MOST_LOOKS, passes))

    def _block(self, prompts: Sequence[Prompt], *, must: bool) -> bool:
        seated = self._seated()
        cost, room = self.dealing.estimate(seated, prompts), self.dealing.left_s()
        if self.dealing.steps and cost > room and not must:
            return False
        if self.dealing.steps and cost > 2 * room:
            self._leave_out(seated, cost)
            return False
        return self.dealing.deal(seated, prompts)

    def _unknown(self, prompts: Sequence[Prompt]) -> None:
        """Candidates without a forecast, in groups, each with no draft and the leader so far."""
        while unknown := [
            c for c in self.grid.values() if c.key not in self.forecasts and not self._tried(c.key)
        ]:
            leader = self._leader()
            group = unknown[: self.dealing.seats - (leader is not None)]
            seated = [*self.bare, *([leader] if leader is not None else []), *group]
            if not self._extra(seated, prompts, unknown):
                return

    def _remembering(self, prompts: Sequence[Prompt]) -> None:
        """The best n-gram method, alone and before a draft, in one block of all prompts: its
        server learns from every request, so that it is not started again between blocks."""
        found = [c for c in self.grid.values() if c.key.ngram is not None and self._open(c.key)]
        ranked = sorted(
            found, key=lambda c: (c.name != self.again, -(self._forecast_value(c.key) or 0.0))
        )
        standing = self.standing()
        alone = [c for c in ranked if not c.key.is_file][:1]
        first = [
            c
            for c in ranked
            if c.key.is_file
            and (c.name == self.again or (standing and standing.chance.get(c.key, 0) >= PROMISING))
        ][:1]
        if not alone and not first:
            return
        leader = self._leader()
        seated = [*self.bare, *([leader] if leader is not None else []), *alone, *first]
        self._extra(seated, prompts, [*alone, *first])

    def _extra(
        self,
        seated: Sequence[Configuration],
        prompts: Sequence[Prompt],
        asking: Sequence[Configuration],
    ) -> bool:
        """A block of all ``prompts`` for those ``asking``, where the budget has room for it."""
        cost = self.dealing.estimate(seated, prompts)
        if cost > self.dealing.left_s():
            self._leave_out(asking, cost)
            return False
        return self.dealing.deal(seated, prompts)

    def _leave_prompts_out(self, count: int) -> None:
        why = f"left out: score.live_budget is {self.dealing.budget_s / 60:g} minutes"
        name = f"live requests of {count} of {len(self.prompts.prompts)} prompts"
        self.left_out.append(Excluded(name, why))
        self.executor.output.warn(f"{name}: {why}")

    def _leave_out(self, configurations: Sequence[Configuration], cost_s: float) -> None:
        why = (
            f"left out: about {cost_s:.0f} s more, and score.live_budget is "
            f"{self.dealing.budget_s / 60:g} minutes"
        )
        known = {one.candidate for one in self.left_out} | {c.name for c in self.bare}
        for c in configurations:
            if c.name not in known and c.key not in self.dealing.runs:
                self.left_out.append(Excluded(c.name, why))
                self.executor.output.warn(f"{c.name}: {why}")

    def _seated(self) -> list[Configuration]:
        """No draft of every engine, and the candidates that may be the best: those of other files
        first, until something ran, and then the best draft and others by their chance."""
        able = [c for c in self.grid.values() if c.key.ngram is None and self._open(c.key)]
        standing = self.standing()
        asked = [c for c in able if c.name == self.again]
        if standing is None:
            chosen = able[: self.dealing.seats]
        else:
            able = [c for c in able if c.key in standing.chance]
            able.sort(key=lambda c: -standing.chance[c.key])
            ran = [c for c in able if self.dealing.runs.get(c.key)]
            leading = [max(ran, key=lambda c: standing.value[c.key])] if ran else []
            if not self.dealing.runs:
                able.sort(key=lambda c: -standing.value[c.key])
                firsts = list({c.live.draft: c for c in reversed(able)}.values())
                firsts.sort(key=lambda c: -standing.value[c.key])
                leading = [
                    c
                    for place, c in enumerate(firsts[:FILES])
                    if place < 2 or standing.chance[c.key] >= HOPEFUL
                ]
            near = [c for c in able if standing.chance[c.key] >= PROMISING]
            chosen = list({c.key: c for c in (*leading, *near)}.values())
        chosen = list({c.key: c for c in (*asked, *chosen[: self.dealing.seats])}.values())
        return [*(c for c in self.bare if self._open(c.key)), *chosen]

    def _over(self) -> bool:
        standing = self.standing()
        return standing is None or standing.decided(self.look) or not self.aim.objective.timed

    @property
    def judged(self) -> int:
        """Times at most that the standings are asked whether it is over."""
        return self.looks - self.score.repeats + 1

    @property
    def look(self) -> float:
        return 1 - (1 - self.aim.confidence) / self.judged

    def _why_no_forecast(self, configuration: Configuration) -> str:
        """What kept a draft from being replayed or timed."""
        draft = configuration.draft
        if draft is not None and draft.name in self.dropped:
            return self.dropped[draft.name]
        steps: list[Step[Any]] = []
        for plan in (m.forecast for m in self.layouts if m.forecast is not None):
            for one in plan.drafts:
                if plan.is_of(one, configuration.key):
                    steps += [one.replay, *([one.curve] if one.curve is not None else [])]
        failures = self.executor.outcomes.failures
        found = (failures[step.key].error.message for step in steps if step.key in failures)
        return next(found, "nothing could be forecast of it")

    def _leader(self) -> Configuration | None:
        standing = self.standing()
        return self.grid.get(standing.leader) if standing is not None else None

    def _open(self, key: CandidateKey) -> bool:
        return key not in self.dealing.failed

    def _tried(self, key: CandidateKey) -> bool:
        return key in self.dealing.runs or key in self.dealing.failed

    def _forecast_value(self, key: CandidateKey) -> float | None:
        forecast = self.forecasts.get(key)
        if forecast is None:
            return None
        return self.aim.objective.of(figures(forecast.runs, self.aim.weights))

    def _known(self, key: CandidateKey) -> Sequence[PromptRun]:
        """Its live requests, or else those forecast."""
        forecast = self.forecasts.get(key)
        return self.dealing.runs.get(key) or (forecast.runs if forecast is not None else ())

    def rows(self) -> tuple[Row[CandidateKey], ...]:
        """The one table, no draft of every engine first."""
        every = [*self.bare, *self.grid.values()]
        return tuple(
            Row(
                c.key,
                c.draft.model.key if c.draft is not None else c.name,
                self.forecasts[c.key].runs if c.key in self.forecasts else (),
                self._counted(c.key),
            )
            for c in every
            if self._open(c.key)
        )

    def _counted(self, key: CandidateKey) -> tuple[PromptRun, ...]:
        """Live requests, with a draft's reading of the prompt counted as reading."""
        runs = self.dealing.runs.get(key, [])
        forecaster = self.forecasters.get(key.engine)
        return (
            forecaster.with_prompt_time_separated(key, runs)
            if forecaster is not None
            else tuple(runs)
        )

    def standing(self) -> Standings[CandidateKey] | None:
        """Who is best by all that is known."""
        rows, base = self.rows(), self._base()
        if base is None:
            return None
        return standings(
            rows,
            base,
            self.aim.objective,
            weights=self.aim.weights,
            margin=self.aim.margin,
            confidence=self.aim.confidence,
            acceptance_sd=max((sd for sd in self.floors.values() if sd is not None), default=0.0),
        )

    @cached_property
    def floors(self) -> dict[str, float | None]:
        """By engine, what a draft's acceptance differs by between batch shapes."""
        ids = [prompt.id for prompt in self.prompts.prompts]
        return {n: f.acceptance_floor(ids) for n, f in self.forecasters.items()}

    def _base(self) -> CandidateKey | None:
        """The no draft that others are compared with: the fastest, by live requests if any."""

        def speed(c: Configuration) -> float:
            runs = self._known(c.key)
            return figures(runs).end_to_end_speed or 0.0 if runs else -1.0

        able = [c for c in self.bare if self._open(c.key)]
        return max(able, key=speed).key if able else None

    def decision(
        self, excluded: Sequence[Excluded], file_bytes: Mapping[str, int | None]
    ) -> Decision:
        standing = self.standing()
        pick = _picked(standing, self.dealing, self.look, file_bytes) if standing else None
        decided = pick is not None and standing is not None and standing.decided(self.look)
        order = sorted(
            (c for c in self.grid.values() if self.dealing.runs.get(c.key) and self._open(c.key)),
            key=lambda c: (c.key != pick, -(standing.value.get(c.key, 0.0) if standing else 0.0)),
        )
        failed = [
            Excluded(c.name, self.dealing.failed[c.key])
            for c in (*self.bare, *self.grid.values())
            if c.key in self.dealing.failed
        ]
        failed += [Excluded(c.name, self._why_no_forecast(c)) for c in self.unforecast]
        known = standing.value if standing is not None else {}
        unable = [
            Excluded(c.name, self.aim.objective.why_none(figures(runs)))
            for c in (*self.bare, *self.grid.values())
            if self._open(c.key) and c.key not in known and (runs := self._known(c.key))
        ]
        return Decision(
            forecasts=tuple(self.forecasts.values()),
            rows=self.rows(),
            standings=standing,
            pick=pick,
            decided=decided,
            look=self.look,
            dealing=self.dealing,
            finalists=tuple(order),
            baselines=tuple(self.bare),
            seconds_to_decide=None if decided or standing is None else self._cost(standing),
            left_out=tuple(self.left_out),
            excluded=(*excluded, *failed, *unable),
            dropped=self.dropped,
            silent=self.silent,
            acceptance_sd=self.floors,
            looks=self.judged,
            forecasters=self.forecasters,
            base=next((row for row in self.rows() if row.key == self._base()), None),
        )

    def _cost(self, standing: Standings[CandidateKey]) -> float | None:
        """Seconds until leader and rival would be known to differ, or to be within the margin."""
        rival = self.grid.get(standing.rival) if standing.rival is not None else None
        leader = self.grid.get(standing.leader)
        if not self.aim.objective.timed or rival is None or rival.key.ngram is not None:
            return None
        seated = [*self.bare, *(c for c in (leader, rival) if c is not None)]
        lead = standing.value[standing.leader] - standing.value[rival.key]
        wanted = max(abs(lead), math.log1p(self.aim.margin)) / 2.2
        starts = max(1.0, 2 * (standing.start_sd / wanted) ** 2)
        had = len({run.block for run in self.dealing.runs.get(rival.key, [])})
        more = max(1, math.ceil(starts) - had)
        share = self.prompts.prompts[: max(1, len(self.prompts.prompts) // max(self.blocks, 1))]
        return more * self.dealing.estimate(seated, share)


def _picked(
    standing: Standings[CandidateKey],
    dealing: Dealing,
    confidence: float,
    file_bytes: Mapping[str, int | None],
) -> CandidateKey:
    """The leader, or the smallest file that is surely within the margin of the best."""

    def size(key: CandidateKey) -> float:
        if not key.is_file or key.draft is None:
            return 0.0
        known = file_bytes.get(key.draft)
        return math.inf if known is None else known

    if not standing.decided(confidence):
        return standing.leader
    as_good = [
        key
        for key, chance in standing.within.items()
        if chance >= confidence and (dealing.runs.get(key) or not dealing.runs)
    ]
    return min(as_good, key=lambda key: (size(key), -standing.value[key]))


def _load_s(plan: ForecastPlan, forecaster: Forecaster, forecasts: Sequence[Forecast]) -> float:
    """Seconds to load the target, about: what recording the trace took beyond its steps."""
    if isinstance(plan.trace, RecordedTraceStep):
        return 0.0
    bare = next((f for f in forecasts if f.key.draft is None), None)
    steps_s = sum(run.wall_ms for run in bare.runs) / 1000 if bare is not None else 0.0
    return max(0.0, forecaster.outcomes.artifact(plan.trace).seconds - steps_s)
