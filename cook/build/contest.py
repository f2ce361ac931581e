"""The finalists' live runs: first those of the prediction, then of whom it takes to decide.

Live go: the choice, its closest rival of another draft file, and no draft, so that a prediction is
always confronted with the real server; where no draft is the choice, its closest rival is the best
draft. Where that leaves open which is the best, those that may be it are measured further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cook.build.choose import Aim, Chosen, DecidingCost, ForecastErrors, choose
from cook.build.forecast import MODEL, Forecast
from cook.build.layout import Configuration, Layout, shortened
from cook.build.live_runs import LiveRuns
from cook.record.record import CandidateKey, Excluded
from cook.scoring.figures import figures
from cook.scoring.noise import LogSpread, TimingNoise
from cook.scoring.rounds import Rounds
from cook.steps.live import LiveStep

FURTHER = 4
"""At most so many times are contenders measured further, each time on all prompts."""
CONTENDERS = 2
"""Rivals of the leader that are measured further at a time, the most promising first."""
PROMISING = 0.02
"""Chance of being the best from which a rival is worth a live run."""


@dataclass(frozen=True)
class Question:
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
class Contest:
    """The live runs of the finalists, as they go.

    ``shares``: rounds that a configuration runs for its first live figures. ``again``: the name of
    one that runs live whatever is predicted of it.
    """

    question: Question
    live: LiveRuns
    layouts: Sequence[Layout]
    shares: int
    again: str | None = None
    asked: dict[CandidateKey, Configuration] = field(default_factory=dict)
    """The drafting candidates that were asked to run live, in that order."""

    def first(self, predicted: Chosen, *, rival: bool, left_out: list[Excluded]) -> None:
        """The choice, what is run again, the best of another file, and no draft of every engine."""
        choice, *rivals = finalists_of(predicted, self.layouts) or (None,)
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


def draft_files(layouts: Sequence[Layout]) -> dict[str, str]:
    """By a draft's name, what tells its file: several drafts may be of one."""
    return {draft.name: draft.model.key for layout in layouts for draft in layout.drafts}


def of_other_files(keys: Sequence[CandidateKey], layouts: Sequence[Layout]) -> list[CandidateKey]:
    """Those of ``keys`` that are of another file than the first."""
    files = draft_files(layouts)
    first, *rest = [files.get(key.draft or "", key.draft) for key in keys]
    return [key for key, file in zip(keys[1:], rest, strict=True) if file != first]


def finalists_of(choice: Chosen, layouts: Sequence[Layout]) -> tuple[Configuration, ...]:
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
        others = of_other_files(drafting, layouts) or rest
    beside = [*others[:1], *[key for key in others if key.ngram is None][:1]]
    every = {c.key: c for layout in layouts for c in layout.grid}
    return tuple(every[key] for key in dict.fromkeys((first, *beside)))
