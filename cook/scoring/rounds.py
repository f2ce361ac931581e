"""Live rounds: servers started in turn, and how sure what they say of a difference is.

A request is not timed independently of its neighbours. Its time has parts of its own, of its
server's start (memory lands elsewhere, by about 1 %, for all requests of that server), and of the
minutes it ran in (the machine drifts). So what counts is pairs: the ratio of two configurations
within a round, where drift cancels, and how much that differs from round to round, which tells
what a start does. The spread of prompts comes on top. See docs/internals/scoring.md#confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from cook.record.measured import Interval
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.scoring.figures import merge_repeats
from cook.scoring.intervals import FEWEST_PROMPTS, SEED, paired

if TYPE_CHECKING:
    from cook.formats.arrays import Floats
    from cook.scoring.noise import LogSpread
    from cook.scoring.statistics import Contrasts

K = TypeVar("K")
ENOUGH = 2
"""Degrees of freedom from which repeated rounds alone tell what a start does."""
METHOD = "server starts by paired rounds, prompts by stratified cluster bootstrap"


@dataclass(frozen=True)
class Round(Generic[K]):
    """Configurations that ran one after the other, a server each, on the same prompts.

    ``share`` numbers those prompts: rounds of one share repeat each other.
    """

    share: int
    runs: Mapping[K, Sequence[PromptRun]]


@dataclass(frozen=True)
class Rounds(Generic[K]):
    """All rounds of a build and the figure they are looked at for.

    ``started``: spread that a start makes of the speed, by other timings, for as long as the
    rounds cannot tell by themselves; None: there are none.
    """

    rounds: tuple[Round[K], ...]
    objective: Objective
    weights: Mapping[str, float] | None = None
    started: LogSpread | None = None

    @property
    def keys(self) -> tuple[K, ...]:
        """All that ran, in the order in which they first did."""
        return tuple(
            dict.fromkeys(key for r in self.rounds for key, runs in r.runs.items() if runs)
        )

    def start(self) -> LogSpread | None:
        """What a server's start (and all else that moves a whole round of one configuration)
        makes of the log-figure of one round; None where nothing tells. Counts have none.

        It is the part of a round that is neither its configuration's nor its round's. Where
        rounds repeat the same prompts, only against each other: then prompts are none of it.
        Before, by other timings; without these, by all rounds, prompts and all.
        """
        from cook.scoring.noise import LogSpread

        if not self.objective.timed:
            return LogSpread(0.0, 1)
        repeated = self._repeats.spread
        if repeated is not None and repeated.freedom >= ENOUGH:
            return repeated
        return self.started or repeated or self._fit(by_share=False).spread

    @cached_property
    def merged(self) -> dict[K, tuple[PromptRun, ...]]:
        """The requests of every configuration, repeats merged, all as if at the same time: what
        a round was slower than its repeats is taken out, since not all run in every round."""
        drift = self._repeats.drift
        return {
            key: merge_repeats(
                [run.slowed(math.exp(drift[number])) for run in r.runs[key]]
                for number, r in enumerate(self.rounds)
                if r.runs.get(key)
            )
            for key in self.keys
        }

    def contrasts(self, keys: Sequence[K], confidence: float) -> Contrasts[K] | None:
        """What the rounds say of ``keys`` beside each other, to be asked at ``confidence``; None
        where nothing is known of what a start does, or the common prompts are too few."""
        import numpy as np

        from cook.scoring.statistics import RESAMPLES, Contrasts, few, resampled_ratios

        spread, merged = self.start(), self.merged
        measured = paired({key: merged[key] for key in keys}, self.objective, self.weights)
        if measured is None or spread is None or measured.prompts < FEWEST_PROMPTS:
            return None
        rng = np.random.default_rng(SEED)
        logs = np.log(measured.ratios())
        prompts = np.log(resampled_ratios(measured, rng)) - logs[:, None]
        starts = self._repeats.root(keys) @ rng.normal(size=(len(keys), RESAMPLES))
        starts = starts * spread.scale(rng, RESAMPLES)
        return Contrasts(tuple(keys), logs, prompts * few(measured, confidence) + starts)

    def ratio(self, one: K, other: K, confidence: float) -> Interval | None:
        """Interval of the figure of ``one`` over that of ``other``; None where either did not
        run, or as in :meth:`contrasts`."""
        from cook.scoring.statistics import interval_of

        if one not in self.keys or other not in self.keys:
            return None
        found = self.contrasts((one, other), confidence)
        if found is None:
            return None
        mine, theirs = found.logs
        deviations = found.errors[0] - found.errors[1]
        return replace(interval_of(math.exp(mine - theirs), deviations, confidence), method=METHOD)

    def off_by(self, key: K, said: Sequence[PromptRun], confidence: float) -> Interval | None:
        """Interval of the figure of ``said``, the forecast requests of ``key``, over what these
        took live, starts of its servers included; None as in :meth:`contrasts`."""
        import numpy as np

        from cook.scoring.statistics import RESAMPLES, few, interval_of, resampled_ratios

        spread, seen = self.start(), self.merged.get(key)
        if spread is None or seen is None:
            return None
        measured = paired({"said": said, "seen": seen}, self.objective, self.weights)
        if measured is None or measured.prompts < FEWEST_PROMPTS:
            return None
        rng = np.random.default_rng(SEED)
        logs = np.log(measured.ratios())
        prompts = np.log(resampled_ratios(measured, rng)) - logs[:, None]
        ran = sum(bool(r.runs.get(key)) for r in self.rounds)
        starts = spread.over(ran).scale(rng, RESAMPLES) * rng.normal(size=RESAMPLES)
        deviations = (prompts[0] - prompts[1]) * few(measured, confidence) + starts
        ratio = math.exp(logs[0] - logs[1])
        return replace(interval_of(ratio, deviations, confidence), method=METHOD)

    def further(
        self, one: K, other: K, lead: float, margin: float, confidence: float
    ) -> int | None:
        """About how many more rounds would show ``one`` to be at most ``margin`` worse than
        ``other``, if the noise stays as it is and ``one`` leads by ``lead`` (of logarithms).

        None where no number would, since the prompts alone differ by more.
        """
        import numpy as np

        from cook.scoring.racing import student_quantile
        from cook.scoring.statistics import few, resampled_ratios

        spread, merged = self.start(), self.merged
        wanted = (lead + math.log1p(margin)) / student_quantile(0.5 + confidence / 2, 1000)
        if spread is None or wanted <= 0:
            return None
        prompts = 0.0
        if one in merged and other in merged:
            pair = {"one": merged[one], "other": merged[other]}
            measured = paired(pair, self.objective, self.weights)
            if measured is None:
                return None
            totals = np.log(resampled_ratios(measured, np.random.default_rng(SEED)))
            prompts = float(np.std(totals[0] - totals[1])) * few(measured, confidence)
        room = wanted**2 - prompts**2
        if room <= 0:
            return None
        ran = min(sum(bool(r.runs.get(key)) for r in self.rounds) for key in (one, other))
        return max(1, math.ceil(2 * spread.sd**2 / room) - ran)

    @cached_property
    def _repeats(self) -> _Fit[K]:
        return self._fit(by_share=True)

    def _fit(self, *, by_share: bool) -> _Fit[K]:
        """Log-figures of rounds as a part of the configuration (``by_share``: on these prompts)
        and a part of the round, by least squares."""
        import numpy as np

        from cook.scoring.figures import figures
        from cook.scoring.noise import LogSpread

        cells = []
        for number, one in enumerate(self.rounds):
            for key, runs in one.runs.items():
                value = self.objective.of(figures(runs, self.weights)) if runs else None
                if value:
                    cells.append(((key, one.share if by_share else 0), number, math.log(value)))
        own = list(dict.fromkeys(cell for cell, _, _ in cells))
        design = np.zeros((len(cells), len(own) + len(self.rounds)))
        for row, (cell, number, _) in enumerate(cells):
            design[row, own.index(cell)] = design[row, len(own) + number] = 1.0
        values = np.array([value for _, _, value in cells])
        solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        freedom = len(cells) - int(rank)
        rest = values - design @ solution
        drift = np.array(solution[len(own) :])
        for share in {r.share for r in self.rounds}:
            members = [n for n, r in enumerate(self.rounds) if r.share == share]
            drift[members] -= drift[members].mean()
        return _Fit(
            spread=LogSpread(math.sqrt(float(rest @ rest) / freedom), freedom) if freedom else None,
            drift=tuple(drift.tolist())
            if by_share and self.objective.timed
            else (0.0,) * len(drift),
            cells=tuple(own),
            covariance=np.asarray(
                np.linalg.pinv(design.T @ design, hermitian=True)[: len(own), : len(own)],
                dtype=np.float64,
            ),
        )


@dataclass(frozen=True, eq=False)
class _Fit(Generic[K]):
    """``drift``: log of a figure in each round over that in its repeats; ``spread`` of what is
    left; ``covariance`` of the configurations' parts, in squares of that spread."""

    spread: LogSpread | None
    drift: tuple[float, ...]
    cells: tuple[tuple[K, int], ...]
    covariance: Floats

    def root(self, keys: Sequence[K]) -> Floats:
        """[keys, keys] such that it, times independent errors of spread 1, errs as differences of
        ``keys`` do, each a mean over its prompts."""
        import numpy as np

        mean = np.array([[float(key == k) for k, _ in self.cells] for key in keys])
        mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)
        centred = mean - mean.mean(axis=0)
        values, vectors = np.linalg.eigh(centred @ self.covariance @ centred.T)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
