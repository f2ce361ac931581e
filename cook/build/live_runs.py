"""Live runs on real servers: what the live budget buys, in which order, and what disturbed them.

The budget is looked at before anything runs, with estimates in the place of what was not measured
yet: seconds of a load and of every prompt as forecast. What does not fit is left out in this
order: calibration at other lengths, second rounds, the rival. Nothing is left out silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cook.build.forecast import Forecaster
from cook.build.layout import Configuration
from cook.graph.execute import Executor, Outcomes
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import DISTURBED, UNFORESEEN, CandidateKey, Doubt, Excluded
from cook.scoring.figures import figures
from cook.scoring.noise import LogSpread
from cook.scoring.rounds import Round, Rounds
from cook.steps.live import LiveOutcome, LiveStep, told

FAR = math.log(1.25)
"""Logarithm of live over forecast time beyond which something else must have been at work: out of
sample forecasts err by a few per cent."""
UNSTEADY = math.log(1.15)
"""The same of two rounds of one configuration, beyond what all that ran beside it changed by: a
machine that changes its speed does so for all, and rounds are compared within themselves."""


@dataclass(frozen=True)
class LiveFit:
    """What of the usual live runs fits the budget: rounds of each configuration, calibration at
    other ``lengths``, and a ``rival``. ``left_out`` says what does not, and why."""

    rounds: int
    lengths: bool
    rival: bool
    left_out: tuple[Excluded, ...] = ()


def fit_budget(
    round_s: float, bare_s: float, rounds: int, lengths: int, budget_s: float
) -> LiveFit:
    """``round_s`` of a draft and ``bare_s`` of no draft are what a round takes, its load too;
    ``rounds`` were asked for and ``lengths`` other lengths. No draft and the leader run a round
    whatever the budget: a budget too small for anything is told by what it left out."""
    tries = [
        LiveFit(rounds, True, True),
        *(LiveFit(n, False, True) for n in range(rounds, 0, -1)),
        LiveFit(1, False, False),
    ]

    def seconds(fit: LiveFit) -> float:
        drafted = (2 if fit.rival else 1) * fit.rounds + (lengths if fit.lengths else 0)
        return drafted * round_s + fit.rounds * bare_s

    fit = next((t for t in tries if seconds(t) <= budget_s), tries[-1])
    why = (
        f"left out: all live runs would take about {seconds(tries[0]):.0f} s, and "
        f"score.live_budget is {budget_s / 60:g} minutes"
    )
    left_out = []
    if not fit.lengths and lengths:
        left_out.append(Excluded("calibration at other lengths", why))
    if fit.rounds < rounds:
        left_out.append(Excluded(f"live rounds after the first {fit.rounds}", why))
    if not fit.rival:
        left_out.append(Excluded("the live run of a rival", why))
    return replace(fit, left_out=tuple(left_out))


@dataclass
class LiveRuns:
    """The live runs of one build as they go.

    ``expected``: forecast requests of each candidate, by prompt; ``load_s``: seconds of a server's
    start, by estimate until one was measured. ``steps`` are all that ran, ``rounds`` what counts
    of them; ``doubts`` say of a configuration why it confirms nothing, although it was measured
    again.
    """

    executor: Executor
    budget_s: float
    expected: dict[CandidateKey, dict[str, PromptRun]] = field(default_factory=dict)
    load_s: float = 0.0
    steps: list[LiveStep] = field(default_factory=list)
    rounds: list[Round[CandidateKey]] = field(default_factory=list)
    doubts: dict[CandidateKey, Doubt] = field(default_factory=dict)
    forecasters: dict[str, Forecaster] = field(default_factory=dict)
    """By engine: they know what an engine counts as decoding that is reading of the prompt."""
    counted: dict[CandidateKey, list[LiveStep]] = field(default_factory=dict)
    turn: int = 0
    """Times that something was laid out anew so far: every repeat is a step of its own."""

    def spent_s(self) -> float:
        """What the servers took so far, by their own account, so that a build of what is stored
        decides as it did."""
        return sum(self._cost(step) or 0.0 for step in self.steps)

    def estimate(self, steps: Iterable[tuple[CandidateKey, LiveStep]]) -> float:
        """Seconds that ``steps`` will take."""
        loads = [r.load_seconds for s in self.steps if (r := self._outcome(s)) is not None]
        load_s = max(loads) if loads else self.load_s
        return sum(load_s + self._requests_s(key, step) for key, step in steps)

    def affords(self, steps: Iterable[tuple[CandidateKey, LiveStep]]) -> bool:
        """Whether the budget has room for ``steps``."""
        return self.spent_s() + self.estimate(steps) <= self.budget_s

    def run(self, configurations: Sequence[Configuration]) -> None:
        """A round of each before the next round; backwards every other time, so that a drift
        within rounds falls on all alike."""
        self._note(configurations, run=True)

    def note(self, configurations: Sequence[Configuration]) -> None:
        """The rounds of ``configurations``, which ran already, one beside the other."""
        self._note(configurations, run=False)

    def repeated(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """The same to be measured anew."""
        self.turn += 1
        return [
            replace(
                c,
                rounds=tuple(
                    replace(step, repeat=step.repeat + self.turn * len(c.rounds))
                    for step in c.rounds
                    if step.repeat == 0
                ),
            )
            for c in configurations
        ]

    def of(
        self, objective: Objective, weights: Mapping[str, float] | None, started: LogSpread | None
    ) -> Rounds[CandidateKey]:
        """All rounds so far, to be looked at for ``objective``."""
        return Rounds(tuple(self.rounds), objective, weights, started)

    def ran(self, configuration: Configuration) -> Configuration:
        """``configuration`` with the rounds that count of it, where they all succeeded."""
        outcomes = self.executor.outcomes
        steps = tuple(s for s in self.counted.get(configuration.key, []) if self._outcome(s))
        if not steps or any(s.key in outcomes.failures for s in configuration.rounds):
            return configuration
        compare = configuration.compare
        if compare is not None and any(s.key not in outcomes.artifacts for s in compare.live):
            # Its first rounds were another's calibration: these are the same prompts once more.
            firsts = {step.round: step for step in reversed(steps)}
            compare = replace(compare, live=tuple(firsts[s.round] for s in compare.live))
        return replace(configuration, rounds=steps, compare=compare)

    def left_of(self, configuration: Configuration) -> Configuration:
        """``configuration`` with those of its rounds whose prompts it has not run on yet."""
        ran = {r.share for r in self.rounds if r.runs.get(configuration.key)}
        rounds = tuple(step for step in configuration.rounds if step.round not in ran)
        return replace(configuration, rounds=rounds)

    def _note(self, configurations: Sequence[Configuration], *, run: bool) -> None:
        by_turn: dict[tuple[int, int], list[tuple[CandidateKey, LiveStep]]] = {}
        for configuration in configurations:
            times: dict[int, int] = {}
            for step in configuration.rounds:
                turn = times.get(step.round, 0)
                times[step.round] = turn + 1
                by_turn.setdefault((turn, step.round), []).append((configuration.key, step))
        for number, turn_and_share in enumerate(sorted(by_turn)):
            asked = by_turn[turn_and_share]
            if run:
                order = asked if number % 2 == 0 else asked[::-1]
                self.executor.run([step for _, step in order])
            self._keep(asked)

    def _keep(self, asked: Sequence[tuple[CandidateKey, LiveStep]]) -> None:
        """One round; once more where something disturbed it and the budget allows. Not for what
        was measured again before to no avail: it is always there, or the forecast is wrong."""
        self.steps += [step for _, step in asked]
        doubts = self._doubts(asked)
        if doubts.keys() - self.doubts.keys() and self.affords(asked):
            self.turn += 1
            again = [
                (key, replace(step, repeat=step.repeat + 1_000_000 + self.turn))
                for key, step in asked
            ]
            self.executor.output.say(
                f"live round {asked[0][1].round + 1} is measured again: "
                + "; ".join(
                    f"{step.name}: {doubts[key].why}" for key, step in asked if key in doubts
                )
            )
            self.executor.run([step for _, step in again])
            self.steps += [step for _, step in again]
            first, asked = asked, again
            doubts = self._doubts(asked, first)
        self.doubts |= doubts
        runs = {
            key: self._counted_alike(key, r.runs)
            for key, step in asked
            if (r := self._outcome(step)) is not None
        }
        self.rounds.append(Round(asked[0][1].round, runs))
        for key, step in asked:
            self.counted.setdefault(key, []).append(step)

    def _doubts(
        self,
        asked: Sequence[tuple[CandidateKey, LiveStep]],
        first: Sequence[tuple[CandidateKey, LiveStep]] = (),
    ) -> dict[CandidateKey, Doubt]:
        """Of a round, or of one that repeats the ``first``."""
        found: dict[CandidateKey, Doubt] = {}
        changed: dict[CandidateKey, float] = {}
        for key, step in asked:
            outcome = self._outcome(step)
            if outcome is None:
                continue
            if told(outcome.others_cores) is not None:
                busy = f"other programs kept {outcome.others_cores:.1f} cores busy"
                found[key] = Doubt(DISTURBED, busy)
                continue
            slower = self._slower_than_forecast(key, outcome.runs)
            if slower is None or key.ngram is not None:
                continue  # draft-free speculation differs with what its server saw before
            rounds = (r.runs.get(key, ()) for r in self.rounds)
            before = [s for runs in rounds if (s := self._slower(key, runs)) is not None]
            if abs(slower) > FAR:
                times = f"it took {math.exp(slower):.2f} times the time that was forecast"
                others = (*before, *self._undisturbed(key, first))
                if any(abs(slower - other) <= UNSTEADY for other in others):
                    found[key] = Doubt(UNFORESEEN, f"{times}, twice alike")
                else:
                    found[key] = Doubt(DISTURBED, times)
            elif before:
                changed[key] = slower - before[0]
        drift = min(changed.values(), key=abs) if len(changed) > 1 else 0.0
        return found | {
            key: Doubt(DISTURBED, f"its rounds differ by {abs(math.expm1(change - drift)):.0%}")
            for key, change in changed.items()
            if abs(change - drift) > UNSTEADY
        }

    def _undisturbed(
        self, key: CandidateKey, asked: Sequence[tuple[CandidateKey, LiveStep]]
    ) -> list[float]:
        """Of ``key`` in ``asked``, by how much it was slower than forecast, where no other program
        was seen at work."""
        outcomes = [self._outcome(step) for mine, step in asked if mine == key]
        calm = [o for o in outcomes if o is not None and told(o.others_cores) is None]
        slower = [self._slower_than_forecast(key, outcome.runs) for outcome in calm]
        return [one for one in slower if one is not None]

    def _slower_than_forecast(self, key: CandidateKey, runs: Sequence[PromptRun]) -> float | None:
        return self._slower(key, self._counted_alike(key, runs))

    def _slower(self, key: CandidateKey, runs: Sequence[PromptRun]) -> float | None:
        """Logarithm of the decoding time of ``runs`` over that forecast, by the token."""
        forecast = self.expected.get(key, {})
        common = [run for run in runs if run.id in forecast]
        if not common:
            return None
        live = figures(common).decode_speed
        told_s = figures([forecast[run.id] for run in common]).decode_speed
        return math.log(told_s / live) if live and told_s else None

    def _counted_alike(self, key: CandidateKey, runs: Sequence[PromptRun]) -> tuple[PromptRun, ...]:
        forecaster = self.forecasters.get(key.engine)
        return forecaster.counted_alike(key, runs) if forecaster is not None else tuple(runs)

    def _requests_s(self, key: CandidateKey, step: LiveStep) -> float:
        """Of its prompts as measured before, as forecast, or as no draft's."""
        asked = {prompt.id for prompt in step.prompts}
        for runs in (
            *(r.runs[key] for r in reversed(self.rounds) if r.runs.get(key)),
            tuple(self.expected.get(key, {}).values()),
            *(tuple(e.values()) for k, e in self.expected.items() if k.draft is None),
        ):
            wall = [run.wall_ms for run in runs if run.id in asked]
            if wall:
                return sum(wall) / len(wall) * len(asked) / 1000
        return 0.0

    def _cost(self, step: LiveStep) -> float | None:
        outcome = self._outcome(step)
        if outcome is None:
            return None
        return outcome.load_seconds + sum(run.wall_ms for run in outcome.runs) / 1000

    def _outcome(self, step: LiveStep) -> LiveOutcome | None:
        return self.executor.outcomes.result(step)


def measured_seconds(first: LiveStep, outcomes: Outcomes, rounds: int) -> float | None:
    """Seconds that one whole configuration takes, going by the baseline's first round."""
    outcome = outcomes.result(first)
    if outcome is None:
        return None
    requests_s = sum(run.wall_ms for run in outcome.runs) / 1000
    return (outcome.load_seconds + requests_s) * rounds


def within_budget(
    grid: Sequence[Configuration],
    seconds: float | None,
    budget_seconds: float,
    baselines: int = 1,
) -> tuple[tuple[Configuration, ...], tuple[Excluded, ...]]:
    """The first configurations that fit beside the baselines, and what was left out.

    The baselines always run, and at least one configuration does: a budget too small for
    anything is told by what it left out, not by an empty table.
    """
    if seconds is None:
        return tuple(grid), ()
    room = max(1, int(budget_seconds / seconds) - baselines)
    reason = (
        f"left out: about {seconds:.0f} s a candidate, and score.live_budget is "
        f"{budget_seconds / 60:g} minutes"
    )
    return tuple(grid[:room]), tuple(Excluded(c.name, reason) for c in grid[room:])
