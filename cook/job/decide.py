"""From replays to the pick: forecast everything, deal prompts to the finalists, name the fastest.

A forecast is a filter: it says who is worth a live run. Those that are get the same prompts at the
same moment (:class:`Dealing`), and after every block :func:`cook.scoring.compare.standings`
judges the leader against every candidate, those included that did not run. It ends when no other
can be better by more than the margin, or with the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cook.engines.base import Engine
from cook.graph.execute import Executor
from cook.graph.step import LOAD_BYTES_S, Step
from cook.job.count_accuracy import acceptance_floor, unfit
from cook.job.forecast import Forecaster
from cook.job.layout import Configuration, Layout, dealt_into
from cook.prompts.prompt_set import Prompt
from cook.provenance import machine
from cook.recipe.schema import Recipe, ScoreSpec
from cook.record.record import CandidateKey, Excluded, Objective, PromptRun, SlotSpeed
from cook.scoring.compare import FEWEST_PROMPTS, Row, Standings, figures, standings
from cook.scoring.price import Forecast
from cook.steps.deal import DealOutcome, DealStep, Dealt
from cook.steps.work import model_bytes

BLOCKS = 6
"""Blocks at most that the prompts are dealt in, each with fresh servers: the more of them, the less
is left of what server starts differ by."""
FEW_BLOCKS = 2
"""The same where servers take turns; and the least where they are alive together."""
LOAD_SHARE = 0.25
"""What loads may take of the time that requests take."""
BLOCK_PROMPTS = 3
"""A block has at least so many."""
MOST_SEATS = 5
"""Candidates in a block, next to no draft, where the servers are alive together."""
TURN_SEATS = 2
"""The same in turns, where every one is another load."""
MOST_LOOKS = 5
"""Times that the standings may end the dealing; the error probability is split over them."""
FIRST_PASS = 2
"""What a block of the first pass may take, over what is left of the budget."""
PROMISING = 0.02
"""Chance of being the best from which a candidate is worth prompts."""
LIKELIER = 10
"""N-grams get the budget where one is so many times as likely the best as any draft."""
FILES, HOPEFUL = 3, 0.002
"""Draft files of which one candidate each is in the first block: two in any case, which tells how
far forecasts of files are off, and a third that has any chance."""
_APART = ("--no-mmap", "-rtr", "--run-time-repack")
"""Arguments that give every server its own copy of the weights."""
Seats = Sequence[Configuration]


@dataclass
class Dealing:
    """Runs blocks and keeps what came of them.

    ``together``: servers are alive at once; ``budget_s``: what all blocks may take. ``expected``:
    forecast requests of each candidate; ``load_s`` of one server, by estimate until one
    was loaded. ``failed``: candidates whose server died or did not load, each with the reason.
    """

    executor: Executor
    together: bool
    budget_s: float
    expected: Mapping[CandidateKey, Sequence[PromptRun]]
    load_s: float = 0.0
    reference: Mapping[str, Engine] = field(default_factory=dict)
    on_reference: dict[CandidateKey, list[PromptRun]] = field(default_factory=dict)
    steps: list[DealStep] = field(default_factory=list)
    runs: dict[CandidateKey, list[PromptRun]] = field(default_factory=dict)
    asked: dict[CandidateKey, Configuration] = field(default_factory=dict)
    failed: dict[CandidateKey, str] = field(default_factory=dict)

    @property
    def seats(self) -> int:
        """Candidates in a block, next to no draft."""
        return MOST_SEATS if self.together else TURN_SEATS

    def blocks(
        self, prompts: Sequence[Prompt], seated: Sequence[Configuration]
    ) -> tuple[tuple[Prompt, ...], ...]:
        """The prompts in as many blocks as loads of ``seated`` allow."""
        most = max(1, len(prompts) // BLOCK_PROMPTS)
        loads_s = self.load_s * len(seated)
        count = BLOCKS if self.together else FEW_BLOCKS
        requests_s = sum(self._requests_s(c.key, prompts) for c in seated)
        if requests_s and loads_s:
            count = max(FEW_BLOCKS, min(count, int(LOAD_SHARE * requests_s / loads_s)))
        return dealt_into(prompts, min(count, most))

    def deal(self, seated: Sequence[Configuration], prompts: Sequence[Prompt]) -> bool:
        """A block of ``prompts`` to those ``seated`` whose draft could be made, no draft first.
        False where no draft failed: what ran before counts."""
        # Those whose draft is there; why another's is not, is kept.
        drafts = {c.key: c.live.draft for c in seated if isinstance(c.live.draft, Step)}
        failures = self.executor.run(list(drafts.values())).failures
        lost = {key: failures[one.key] for key, one in drafts.items() if one.key in failures}
        self.failed |= {key: failure.error.message for key, failure in lost.items()}
        seated = [c for c in seated if c.key not in lost]
        repeated = [c for c in seated if c.key.engine in self.reference]
        servers = [replace(c.live, prompts=tuple(prompts)) for c in seated]
        for c in repeated:
            name, engine = f"{c.name} on the reference build", self.reference[c.key.engine]
            servers.append(replace(c.live, prompts=tuple(prompts), engine=engine, name=name))
        step = DealStep(tuple(servers), len(self.steps), self.together and len(seated) > 1)
        self.steps.append(step)
        self.executor.run([step])
        self.asked |= {c.key: c for c in seated}
        outcome = self._outcome(step)
        if outcome is None:
            failure = self.executor.outcomes.failures.get(step.key)
            why = failure.error.message if failure is not None else "not run"
            self.failed |= {c.key: why for c in seated if c.key not in self.runs}
            return False
        self.together = self.together and (outcome.together or len(seated) == 1)
        for place, (c, one) in enumerate(zip((*seated, *repeated), outcome.dealt, strict=True)):
            if one.outcome is not None:
                runs = self.runs if place < len(seated) else self.on_reference
                runs.setdefault(c.key, []).extend(outcome.counted(place))
                self.load_s = max(self.load_s, one.outcome.load_seconds)
            elif place < len(seated):
                self.failed[c.key] = one.failure or "not run"
        return True

    def dealt(self, key: CandidateKey) -> Dealt | None:
        """All that ``key`` was dealt; None where it has no request."""
        if not self.runs.get(key):
            return None
        name = self.asked[key].name
        found = [(step, self._outcome(step)) for step in self.steps if name in step.names]
        ran = (step for step, one in found if one and one.dealt[step.names.index(name)].outcome)
        return Dealt(tuple(ran), name)

    def spent_s(self) -> float:
        """Of the blocks as recorded, so that a build from the store decides as the first did."""
        return sum(found.seconds for step in self.steps if (found := self._outcome(step)))

    def left_s(self) -> float:
        """Of the budget; below 0 where blocks that had to be dealt took more."""
        return self.budget_s - self.spent_s()

    def estimate(self, seated: Iterable[Configuration], prompts: Sequence[Prompt]) -> float:
        """Seconds that a block will take."""
        each = {c.key: self.load_s + self._requests_s(c.key, prompts) for c in seated}
        return self._pace() * sum(s * (1 + (k.engine in self.reference)) for k, s in each.items())

    def _pace(self) -> float:
        """What blocks took of their loads and requests: where others crowd the machine, more."""
        found = (one for o in map(self._outcome, self.steps) for one in (o.dealt if o else ()))
        ran = [one.outcome for one in found if one.outcome is not None]
        least = sum(one.load_seconds + sum(r.wall_ms for r in one.runs) / 1000 for one in ran)
        return max(1.0, self.spent_s() / least) if least else 1.0

    def _requests_s(self, key: CandidateKey, prompts: Sequence[Prompt]) -> float:
        """Of ``prompts``, as measured before, as forecast, or as the slowest that is known."""
        ids = {prompt.id for prompt in prompts}
        own = self.runs.get(key, ()), self.expected.get(key, ())
        for runs in (*own, *self.runs.values(), *self.expected.values()):
            wall = [run.wall_ms for run in runs if run.id in ids] or [run.wall_ms for run in runs]
            if wall:
                return sum(wall) / len(wall) * len(ids) / 1000
        return 0.0

    def _outcome(self, step: DealStep) -> DealOutcome | None:
        return self.executor.outcomes.result(step)


def fit_together(seated: Sequence[Configuration], memory_bytes: int | None) -> bool:
    """Whether the servers of ``seated`` can be expected to be alive at once.

    By the files alone, each once; what every server takes of its own shows as they are loaded
    (:mod:`cook.steps.deal`). Device memory that is free is not known, and an RPC server serves one
    client: there they take turns. So they do where no draft has arguments of its own, which are
    chosen to fill the memory that a draft takes otherwise.
    """
    files: dict[tuple[str, str], float] = {}
    for configuration in seated:
        live = configuration.live
        given = [live.target_args, *([live.draft_args] if live.draft is not None else [])]
        on_device = any(args.n_gpu_layers or args.devices or args.rpc for args in given)
        if on_device or live.target_args != seated[0].live.target_args:
            return False
        for node, args in zip((live.target, live.draft), given, strict=False):
            if node is not None:
                own = any(word in _APART for word in args.extra)
                files[configuration.name if own else "", node.key] = model_bytes(node) or 0
    return memory_bytes is None or sum(files.values()) <= 0.9 * memory_bytes


@dataclass
class Decision:
    """What is forecast of every candidate, what the dealing came to, and who is picked.

    ``grid``: who may win, ``unforecast``: those without a forecast on an engine where others have
    one, heads excepted. ``rows``: the one table, forecast and live requests of every candidate that
    is not out, no draft of every engine first; ``base``: the fastest of these, which speedups are
    over. ``forecasts`` are over all prompts, without anything fitted to live runs. ``dropped``:
    drafts that could not be replayed, or are unfit, and ``silent`` engines of which nothing was
    predicted, with the reason. ``looks``: times at most that the standings are asked whether it is
    over. ``again`` names a candidate that is dealt every prompt whatever is forecast of it.
    """

    score: ScoreSpec
    objective: Objective
    confidence: float
    margin: float
    prompts: tuple[Prompt, ...]
    file_bytes: Mapping[str, int | None]
    dealing: Dealing
    again: str | None = None
    forecasters: dict[str, Forecaster] = field(default_factory=dict)
    """By engine; each reads a replay once, whoever asks."""
    forecasts: dict[CandidateKey, Forecast] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    acceptance_sd: dict[str, float | None] = field(default_factory=dict)
    """By engine, of one draft's acceptance between one pass and token by token."""
    baselines: list[Configuration] = field(default_factory=list)
    grid: dict[CandidateKey, Configuration] = field(default_factory=dict)
    unforecast: list[Configuration] = field(default_factory=list)
    left_out: list[Excluded] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    rows: dict[CandidateKey, Row[CandidateKey]] = field(default_factory=dict)
    base: Row[CandidateKey] | None = None
    standings: Standings[CandidateKey] | None = None
    blocks: tuple[tuple[Prompt, ...], ...] = ()
    looks: int = 1
    checks: tuple[Step[Any], ...] = ()
    """Steps that check the counts and outputs of the finalists."""
    slot_speeds: tuple[SlotSpeed, ...] = ()
    slot_steps: tuple[Step[Any], ...] = ()
    """The timings and live runs below :attr:`slot_speeds`."""

    @property
    def look(self) -> float:
        """The confidence of one look at the standings."""
        return 1 - (1 - self.confidence) / self.looks

    @property
    def decided(self) -> bool:
        """Whether no candidate is better than the leader by more than the margin."""
        return self.standings is not None and self.standings.decided(self.look)

    @property
    def pick(self) -> CandidateKey | None:
        """The leader, or the smallest file that is surely within the margin of the best."""
        found = self.standings
        if found is None or not self.decided:
            return found.leader if found is not None else None

        def size(key: CandidateKey) -> float:
            known = self.file_bytes.get(key.draft or "") if key.is_file else 0
            return math.inf if known is None else known

        as_good = [key for key, chance in found.within.items() if chance >= self.look]
        ran = [key for key in as_good if self.dealing.runs.get(key) or not self.dealing.runs]
        return min(ran or as_good, key=lambda key: (size(key), -found.value[key]))

    @property
    def ranking(self) -> tuple[CandidateKey, ...]:
        """Best first, those that ran and those that did not."""
        value = self.standings.value if self.standings is not None else {}
        return tuple(sorted(value, key=lambda key: -value[key]))

    @property
    def finalists(self) -> tuple[Configuration, ...]:
        """Those that ran, the pick first, and then by the standings."""
        value = self.standings.value if self.standings is not None else {}
        ran = [self.grid[key] for key, row in self.rows.items() if row.live and key in self.grid]
        return tuple(sorted(ran, key=lambda c: (c.key != self.pick, -value.get(c.key, 0.0))))

    def add(self, layout: Layout) -> None:
        """Replay, time and forecast the drafts of one engine."""
        name, outcomes = layout.engine.name, self.dealing.executor.outcomes
        if layout.forecast is not None:
            self.dealing.executor.run(layout.forecast.steps())
            dropped = unfit(Forecaster(layout.forecast, outcomes))
            self.dropped |= dropped
            layout = layout.without(dropped)
            if layout.forecast is None:
                self.silent[name] = next(iter(dropped.values()))
        if layout.forecast is not None:
            self.forecasters[name] = forecaster = Forecaster(layout.forecast, outcomes)
            self.forecasts |= {one.key: one for one in forecaster.forecasts()}
            self.acceptance_sd[name] = acceptance_floor(forecaster, [p.id for p in self.prompts])
            if self.forecasts.get(CandidateKey(name)) is None:
                self.silent[name] = self._failure(layout.forecast.steps()) or "nothing was replayed"
        if layout.target is not None:
            load_s = layout.target.size_bytes / LOAD_BYTES_S
            self.dealing.load_s = max(self.dealing.load_s, load_s)
        self.baselines += [layout.baseline] if layout.baseline is not None else []
        has_forecasts = CandidateKey(name) in self.forecasts
        for c in layout.grid:
            lost = c.draft is not None and c.draft.name in self.dropped
            if lost or (has_forecasts and c.key not in self.forecasts and c.live.head is None):
                self.unforecast.append(c)
            else:
                self.grid[c.key] = c

    def _failure(self, steps: Iterable[Step[Any]]) -> str | None:
        """Why the first of ``steps`` failed that did not wait for another."""
        failures = self.dealing.executor.outcomes.failures
        found = (failures[s.key] for s in steps if s.key in failures)
        return next((f.error.message for f in found if f.blocked_by is None), None)

    def run(self) -> None:
        """Pass after pass over the prompts; n-grams, whose servers remember, in a block of all of
        them after the first, which ends early where no draft may win any more and an n-gram may."""
        self.dealing.expected = {key: one.runs for key, one in self.forecasts.items()}
        self._judge()
        self.dealing.together = fit_together(self._seated(), machine().memory_bytes)
        self.blocks = self.dealing.blocks(self.prompts, self._seated())
        if any(key not in self.forecasts for key in self.grid):
            self.blocks = (self.prompts,)  # candidates of which nothing is known, in groups
        repeats = passes = self.score.repeats
        number = 0
        while number < passes:
            for place, block in enumerate(self._blocks(self._seated())):
                seated, must = self._seated(), number < repeats
                if place and passes == 1 and self._ngrams_alone():
                    break  # the budget is for them
                most_s = self.dealing.left_s() * (FIRST_PASS if must else 1)
                most_s = most_s if self.dealing.steps else math.inf
                if not self._deal(seated, block, most_s, seated if must else ()):
                    if must:
                        left = sum(map(len, self.blocks[place:]))
                        of = f", pass {number + 1} of {repeats}" if repeats > 1 else ""
                        prompts = f"{left} of {len(self.prompts)} prompts{of}"
                        self._leave_out([f"live requests of {prompts}"])
                    return
            if number == 0:
                # Candidates without a forecast, in groups, each with no draft and the leader.
                going_on = True
                while going_on:
                    known = {*self.dealing.runs, *self.dealing.failed, *self.forecasts}
                    rest = [c for c in self.grid.values() if c.key not in known]
                    group = rest[: self.dealing.seats - len(self._leader())]
                    going_on = bool(rest) and self._extra(group, rest)
                self._remembering()
                # So many, whole or begun, as the budget allows for three candidates.
                three = self._seated()[: len(self.baselines) + 2]
                blocks = self._blocks(three)
                block_s = max(self.dealing.estimate(three, block) for block in blocks)
                more = int(max(0.0, self.dealing.left_s()) / block_s) if block_s else 0
                passes = max(repeats, min(MOST_LOOKS, 1 + math.ceil(more / len(blocks))))
                self.looks = passes - repeats + 1  # fixed before the first look
            number += 1
            over = self.standings is None or self.decided or not self.objective.timed
            if number >= repeats and over:
                return

    def _blocks(self, seated: Iterable[Configuration]) -> tuple[tuple[Prompt, ...], ...]:
        """Those of a pass: one where an n-gram is ``seated``."""
        return (self.prompts,) if any(c.key.ngram for c in seated) else self.blocks

    def _ngrams_alone(self) -> bool:
        """Whether an n-gram may be the best, and no draft that is without one, by far."""
        chance = self.standings.chance if self.standings is not None and not self.again else {}
        drafts = max((chance[k] for k in chance if k in self.grid and not k.ngram), default=0.0)
        ngrams = max((chance[k] for k in chance if k.ngram), default=0.0)
        return ngrams >= PROMISING and drafts < max(PROMISING, ngrams / LIKELIER)

    def _judge(self) -> None:
        """Put what is known into the table, and see who is best by it."""
        self.rows = {
            c.key: Row(
                c.key,
                c.draft.model.key if c.draft is not None else c.name,
                self.forecasts[c.key].runs if c.key in self.forecasts else (),
                self._counted(c.key),
            )
            for c in (*self.baselines, *self.grid.values())
            if c.key not in self.dealing.failed
        }

        def speed(key: CandidateKey) -> float:
            runs = self.rows[key].live or self.rows[key].forecast
            return figures(runs).end_to_end_speed or 0.0 if runs else -1.0

        best = max((c.key for c in self._bare()), key=speed, default=None)
        self.base = self.rows[best] if best is not None else None
        self.standings = None
        if self.base is None:
            return
        self.standings = standings(
            tuple(self.rows.values()),
            self.base.key,
            self.objective,
            weights=self.score.weights,
            margin=self.margin,
            confidence=self.confidence,
            acceptance_sd=max((sd or 0.0 for sd in self.acceptance_sd.values()), default=0.0),
        )

    def _counted(self, key: CandidateKey) -> tuple[PromptRun, ...]:
        """Live requests, with a draft's reading of the prompt counted as reading."""
        runs, forecaster = self.dealing.runs.get(key, []), self.forecasters.get(key.engine)
        if forecaster is None:
            return tuple(runs)
        return forecaster.with_prompt_time_separated(key, runs)

    def _bare(self) -> list[Configuration]:
        """No draft of every engine that did not fail."""
        return [c for c in self.baselines if c.key not in self.dealing.failed]

    def _leader(self) -> list[Configuration]:
        """The best that ran, unless that is no draft."""
        leader = self.grid.get(self.standings.leader) if self.standings is not None else None
        return [leader] if leader is not None else []

    def _seated(self) -> list[Configuration]:
        """No draft of every engine, and the candidates that may be the best: those of other files
        first, until something ran, and then the best draft, its rival, and others by chance."""
        ran = self.dealing.runs
        able = [c for c in self.grid.values() if c.key not in self.dealing.failed]
        if not any(key.ngram for key in ran):
            able = [c for c in able if c.key.ngram is None]
        asked = [c for c in able if c.name == self.again]
        found = self.standings
        if found is not None:
            order = found.chance if ran else found.value
            able = sorted((c for c in able if c.key in order), key=lambda c: -order[c.key])
            near = [c for c in able if found.chance[c.key] >= PROMISING]
            leading = [c for c in able if ran.get(c.key)]
            leading = [max(leading, key=lambda c: found.value[c.key])] if leading else []
            if ran and not self.decided:
                leading += [c for c in able if c.key == found.rival]
            if not ran:
                firsts = {c.live.draft: c for c in reversed(able)}.values()
                best = sorted(firsts, key=lambda c: -found.value[c.key])[:FILES]
                leading = [*best[:2], *(c for c in best[2:] if found.chance[c.key] >= HOPEFUL)]
            able = list({c.key: c for c in (*leading, *near)}.values())
        return [*self._bare(), *{c.key: c for c in (*asked, *able[: self.dealing.seats])}.values()]

    def _deal(self, seated: Seats, prompts: Sequence[Prompt], most_s: float, rest: Seats) -> bool:
        """A block of ``prompts``; False where it cannot go on, or would take more than ``most_s``:
        then those of the ``rest`` that never ran are left out."""
        cost_s = self.dealing.estimate(seated, prompts)
        if cost_s > most_s:
            never = [c.name for c in rest if c.key in self.grid and c.key not in self.dealing.runs]
            self._leave_out(never, f"about {cost_s:.0f} s more, and ")
            return False
        went_on = self.dealing.deal(seated, prompts)
        self._judge()
        return went_on

    def _leave_out(self, names: Sequence[str], more: str = "") -> None:
        why = f"left out: {more}score.live_budget is {self.dealing.budget_s / 60:g} minutes"
        known = {one.candidate for one in self.left_out}
        for name in [name for name in names if name not in known]:
            self.left_out.append(Excluded(name, why))
            self.dealing.executor.output.warn(f"{name}: {why}")

    def _extra(self, asking: Seats, rest: Seats, prompts: Sequence[Prompt] = ()) -> bool:
        """A block of ``prompts``, or of all, for those ``asking``, with no draft and the leader;
        where it has no room, as a part of the first pass, the ``rest`` is left out."""
        seated = [*self._bare(), *self._leader(), *asking]
        return self._deal(seated, prompts or self.prompts, FIRST_PASS * self.dealing.left_s(), rest)

    def _remembering(self) -> None:
        """The best n-gram method, and others that may win where the first pass has room, in one
        block of all prompts, or as many as have room: their servers learn from every request."""
        chance = self.standings.chance if self.standings is not None else {}

        def order(c: Configuration) -> tuple[bool, float]:
            runs = self.rows[c.key].forecast
            value = self.objective.of(figures(runs, self.score.weights)) if runs else None
            return c.name != self.again, -(value or 0.0)

        able = [c for c in self.grid.values() if c.key.ngram and c.key not in self.dealing.failed]
        able.sort(key=order)
        near = [c for c in able if c.name == self.again or chance.get(c.key, 0) >= PROMISING]
        first = [c for c in able if not c.key.is_file][:1] or near[:1]
        asking = list({c.key: c for c in (*first, *near)}.values())[: self.dealing.seats]
        seated = [*self._bare(), *self._leader()]
        most_s = max(FIRST_PASS * self.dealing.left_s(), 0.1)
        if self.dealing.estimate([*seated, *asking], self.prompts) > most_s:
            asking = first
        shares = math.ceil(self.dealing.estimate([*seated, *asking], self.prompts) / most_s)
        few = dealt_into(self.prompts, max(1, min(shares, len(self.prompts))))[0]
        if asking:
            self._extra(asking, asking, few if len(few) >= FEWEST_PROMPTS else ())

    def exclude(self) -> None:
        """Name those that may not win: their server died, nothing could be forecast of them where
        others were, or they have no such figure."""
        names = {c.key: c.name for c in (*self.baselines, *self.grid.values())}
        for key, why in self.dealing.failed.items():
            self.excluded.append(Excluded(names[key], why))
        self.excluded += [Excluded(c.name, self._why_no_forecast(c)) for c in self.unforecast]
        for key, row in self.rows.items():
            runs = row.live or row.forecast
            if runs and (self.standings is None or key not in self.standings.value):
                why = self.objective.why_none(figures(runs))
                self.excluded.append(Excluded(names[key], why))

    def _why_no_forecast(self, configuration: Configuration) -> str:
        """What kept a draft from being replayed or timed."""
        draft, failures = configuration.draft, self.dealing.executor.outcomes.failures
        if draft is not None and draft.name in self.dropped:
            return self.dropped[draft.name]
        for plan in (forecaster.plan for forecaster in self.forecasters.values()):
            for one in plan.every:
                for step in (one.replay, one.curve):
                    if plan.is_of(one, configuration.key) and step and step.key in failures:
                        return failures[step.key].error.message
        return "nothing could be forecast of it"

    @property
    def seconds_to_decide(self) -> float | None:
        """Until leader and rival would be known to differ, or to be within the margin, about."""
        found = self.standings
        if found is None or found.rival is None or self.decided or not self.objective.timed:
            return None
        rival = (self.grid | {c.key: c for c in self.baselines})[found.rival]
        lead = found.value[found.leader] - found.value[rival.key]
        wanted = max(abs(lead), math.log1p(self.margin)) / 2.2
        had = {run.block for run in self.dealing.runs.get(rival.key, [])}
        more = max(1, math.ceil(2 * (found.start_sd / wanted) ** 2) - len(had))
        seated = [*{c.key: c for c in (*self._bare(), *self._leader(), rival)}.values()]
        return more * self.dealing.estimate(seated, self._blocks(seated)[0])


def decide(
    layouts: Sequence[Layout],
    recipe: Recipe,
    excluded: Sequence[Excluded],
    executor: Executor,
    file_bytes: Mapping[str, int | None],
    again: str | None = None,
    reference: Mapping[str, Engine] | None = None,
) -> Decision | None:
    """Trace, replay, time, forecast, deal, and pick; None where ``recipe`` scores nothing.

    Of ``layouts`` every draft may win; ``excluded`` are those that may not. ``reference``: by
    engine another build of it, on which all that is dealt is dealt as well.
    """
    score, prompts = recipe.score, layouts[0].prompts
    if score is None or prompts is None:
        return None
    found = Decision(
        score,
        Objective(recipe.pick.maximize),
        recipe.pick.confidence,
        recipe.pick.margin,
        prompts.prompts,
        file_bytes,
        Dealing(executor, True, score.live_budget.minutes * 60, {}, reference=reference or {}),
        again,
        excluded=list(excluded),
    )
    for layout in layouts:
        found.add(layout)
    found.run()
    found.exclude()
    return found
