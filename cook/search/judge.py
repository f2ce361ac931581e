"""The verdict: finalists on prompts that neither imatrix nor search has seen, paired by prompt.

The recipe's own quants, the engine's mixtures of the size, and the allocations by KLD and by
perplexity alone stand beside what the search found. Whoever has the most of what is sought is
returned, of those that are shown not to be worse than the recipe's own: a trial of
non-inferiority, in which the whole interval of the difference lies above the margin (Piaggio et
al., JAMA 2012). Where nothing passes it the recipe's own stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cook.formats.arrays import Floats, Ints
from cook.record.measured import Interval
from cook.record.search_record import Effect, Family, SearchVerdict
from cook.scoring.compare import FEWEST_PROMPTS, SEED
from cook.scoring.noise import LogSpread
from cook.scoring.statistics import METHOD, Measured, few, resampled_ratios
from cook.search.evaluate import Replies

CONFIDENCE = 0.95
MARGIN = 0.01
"""Share of an acceptance length below which a difference is no matter."""


@dataclass(frozen=True, eq=False)
class Contender:
    """A mix in the final: ``types`` of its tensors, and what it did on the prompts of the
    verdict."""

    name: str
    family: Family
    types: Mapping[str, str]
    size_bytes: int
    replies: Replies
    cycle: float = 1.0
    """What its cycles cost: measured seconds where speed is sought."""


@dataclass(frozen=True)
class Judged:
    """By name: the ``best``, which is returned; the ``leader``, which has the most, shown or not;
    and the best of those ``given`` (None where none fits). The effects by name: each one's
    acceptance length, that less the given's, and the ``gain`` over the given in what is sought,
    tokens for what cycles cost."""

    best: str
    leader: str
    given: str | None
    verdict: SearchVerdict
    lengths: Mapping[str, Effect]
    against_given: Mapping[str, Effect]
    gain: Mapping[str, Effect]
    value: Mapping[str, float]


def judge(
    contenders: Sequence[Contender], confidence: float, timing: LogSpread | None = None
) -> Judged:
    """Who is returned, and whether that is known to be better than the recipe given.

    ``timing``: how far the logarithm of a measured cycle may be off, each contender's by itself.
    Too few prompts for an interval show nothing: then the recipe's own is returned.
    """
    measured = measured_of({c.name: c.replies for c in contenders})
    cost = np.array([c.cycle for c in contenders])[:, None]
    draws = _Draws.of(measured, confidence)
    sought = _Draws.of(replace(measured, denominator=measured.denominator * cost), confidence)
    if timing is not None:
        sought = sought.timed(timing)
    value = {c.name: c.replies.acceptance_length / c.cycle for c in contenders}
    own = [c.name for c in contenders if c.family == "given"]
    given = max(own, key=lambda name: value[name], default=None)
    others = [name for name in value if given not in (None, name)]
    gain = {name: sought.difference(name, str(given)) for name in others}
    passed = [n for n in value if n not in gain or _not_worse(gain[n], value[str(given)])]
    best, leader = (max(names, key=lambda n: (value[n], n == given)) for names in (passed, value))
    return Judged(
        best=best,
        leader=leader,
        given=given,
        verdict=_verdict(best, leader, given, gain, contenders),
        lengths={name: draws.value(name) for name in value},
        against_given={name: draws.difference(name, str(given)) for name in others},
        gain=gain,
        value=value,
    )


def _not_worse(gain: Effect, given: float) -> bool:
    """Whether it is shown that what has this ``gain`` over ``given`` is not worse by more than
    the margin."""
    return gain.interval is not None and gain.interval.low >= -MARGIN * given


def _verdict(
    best: str,
    leader: str,
    given: str | None,
    gain: Mapping[str, Effect],
    contenders: Sequence[Contender],
) -> SearchVerdict:
    if given is None:
        return "found"
    if best != given:
        interval = gain[best].interval
        return "found" if interval is not None and interval.low > 0 else "tie"
    found = [gain[c.name] for c in contenders if c.family == "found" and c.name in gain]
    worse = [e for e in found if e.interval is not None and e.interval.high < 0]
    return "given" if worse and leader == given else "tie"


def measured_of(replies: Mapping[str, Replies]) -> Measured[str]:
    """Tokens and cycles of drafts on the same prompts: their ratio is the acceptance length."""
    first = next(iter(replies.values()))
    categories = sorted(set(first.categories))
    stratum: Ints = np.array([categories.index(c) for c in first.categories], dtype=np.int64)
    return Measured(
        tuple(replies),
        np.array([one.tokens for one in replies.values()]),
        np.array([one.cycles for one in replies.values()]),
        stratum,
        np.ones(len(stratum)),
    )


def effect(one: Replies, reference: Replies, parts: tuple[str, str], confidence: float) -> Effect:
    """What ``one`` adds to the ratio of the sums of two columns, paired by prompt."""
    rows = [[getattr(r, part) for r in (one, reference)] for part in parts]
    measured = measured_of({"one": one, "reference": reference})
    exact = Measured(
        measured.candidates, np.array(rows[0]), np.array(rows[1]), measured.stratum, measured.weight
    )
    return _Draws.of(exact, confidence).difference("one", "reference")


@dataclass(frozen=True, eq=False)
class _Draws:
    """Resampled totals of candidates [candidates, resamples], about their own."""

    measured: Measured[str]
    confidence: float
    totals: Floats

    @classmethod
    def of(cls, measured: Measured[str], confidence: float) -> _Draws:
        totals = resampled_ratios(measured, np.random.default_rng(SEED), 1000)
        return cls(measured, confidence, totals)

    def timed(self, timing: LogSpread) -> _Draws:
        """With each one's time off by chance, beside its prompts."""
        rng = np.random.default_rng(SEED + 1)
        off = rng.normal(size=self.totals.shape) * timing.scale(rng, self.totals.shape[1])
        return replace(self, totals=self.totals * np.exp(off))

    def value(self, name: str) -> Effect:
        """The total of one."""
        at = self.measured.candidates.index(name)
        return self._effect(float(self.measured.ratios()[at]), self.totals[at])

    def difference(self, name: str, other: str) -> Effect:
        """The total of one less that of another."""
        a, b = (self.measured.candidates.index(n) for n in (name, other))
        ratios = self.measured.ratios()
        return self._effect(float(ratios[a] - ratios[b]), self.totals[a] - self.totals[b])

    def _effect(self, value: float, draws: Floats) -> Effect:
        if self.measured.prompts < FEWEST_PROMPTS:
            return Effect(value)
        tail = (1 - self.confidence) / 2
        wider = few(self.measured, self.confidence)
        low, high = value + wider * np.quantile(draws - value, [tail, 1 - tail])
        return Effect(value, Interval(float(low), float(high), self.confidence, METHOD))
