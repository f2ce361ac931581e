"""Speeds and speedups of candidates, as every table, plot and sentence of a report has them.

With v for tokens a second and v0 for those of no draft on the same requests,

    speedup = v / v0

A candidate that was dealt some of no draft's requests only has its paired speedup
(:func:`cook.scoring.compare.paired`) and v = speedup x v0, and says how many prompts that is. One
that did not run has the speedup of its forecast, times what those that ran on its engine were off
by (:class:`cook.record.record.Factors`), and v = speedup x v0 as well: all rows of a table divide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from cook.record.record import Candidate, Interval, Objective, PromptFigures, PromptRun, Record
from cook.report.compared import best_of_each, draft_label, picked
from cook.scoring.compare import FEWEST_PROMPTS, common, figures, interval
from cook.scoring.totals import Share, standard_error
from cook.units import plural

WHOLE, DECODE = Objective.END_TO_END_SPEED, Objective.DECODE_SPEED


@dataclass(frozen=True)
class Speed:
    """Tokens a second, and over no draft; ``speedup`` None: there is no no draft to compare with.

    ``live``: measured, else forecast. ``part``: "12 of 24 prompts" where no draft had more.
    ``interval`` of the speedup on other prompts of the kind; only of live end-to-end speedups.
    """

    tokens_per_s: float
    speedup: float | None
    live: bool
    part: str | None = None
    interval: Interval | None = None

    @property
    def kind(self) -> str:
        """What a table says of the figures: live on these prompts, or on 12 of 24, or predicted."""
        return (self.part or "live") if self.live else "predicted"

    @property
    def text(self) -> str | None:
        """``1.41x (1.32-1.50)``."""
        return speedup_text(self.speedup, self.interval)


@dataclass(frozen=True)
class Speedup:
    """A candidate's end-to-end speedup, under its name, or on the requests of a category, under
    that: live where it ran, else as forecast. ``each``: of each request."""

    name: str
    candidate: Candidate
    ratio: float
    interval: Interval | None
    each: tuple[float, ...] = ()

    @property
    def live(self) -> bool:
        return self.candidate.live is not None

    @property
    def text(self) -> str | None:
        """As that of :class:`Speed`."""
        return speedup_text(self.ratio, self.interval)


def speedup_text(ratio: float | None, interval: Interval | None) -> str | None:
    """``1.41x (1.32-1.50)``; the ratio alone without an interval."""
    if ratio is None or interval is None:
        return None if ratio is None else f"{ratio:.2f}x"
    return f"{ratio:.2f}x ({interval.low:.2f}-{interval.high:.2f})"


def base_of(record: Record) -> Candidate | None:
    """What speedups are over: the fastest no draft of any engine, of those that ran, if any did."""
    bare = [c for c in record.candidates if c.draft is None and _own(c, WHOLE) is not None]
    live = [c for c in bare if c.live is not None]
    return max(live or bare, key=lambda c: _own(c, WHOLE) or 0.0, default=None)


def speed_of(record: Record, candidate: Candidate, objective: Objective = WHOLE) -> Speed | None:
    """The candidate's, live where it ran; None where it has no such speed."""
    own, base = _own(candidate, objective), base_of(record)
    reference = _own(base, objective) if base is not None else None
    if own is None:
        return None
    if candidate.live is None:
        guess, bare = candidate.predicted, _bare(record, candidate.engine)
        assert guess is not None, "its speed is a forecast"
        ratio = guess.speedup if objective is WHOLE else guess.decode_speedup
        mine = _own(bare, objective) if bare is not None else None
        if ratio is None or mine is None:
            return Speed(own, None, live=False)
        if candidate.draft is not None:
            ratio *= factor_of(record, candidate.engine, objective)
        return Speed(ratio * mine, ratio * mine / reference if reference else None, live=False)
    if base is None or base.live is None or reference is None:
        return Speed(own, None, live=True)
    part = _part(candidate, base)
    found = candidate.speedup_interval if objective is WHOLE else None
    if part is None:
        return Speed(own, own / reference, live=True, interval=found)
    ratio = candidate.speedup if objective is WHOLE else candidate.decode_speedup
    if ratio is None:
        return Speed(own, None, live=True, part=part)
    return Speed(ratio * reference, ratio, live=True, part=part, interval=found)


def factor_of(record: Record, engine: str, objective: Objective = WHOLE) -> float:
    """What forecast speedups on ``engine`` are multiplied by; 1 where no draft ran on it."""
    found = next((f for f in record.factors if f.engine == engine), None)
    if found is None:
        return 1.0
    return found.end_to_end if objective is WHOLE else found.decode


def speed_notes(record: Record) -> Iterator[str]:
    """What a reader of a table of speeds has to know of it, a sentence each."""
    speeds = [(c, s) for c in record.candidates if (s := speed_of(record, c)) is not None]
    if any(s.interval is not None for _, s in speeds):
        yield (
            f"In brackets is the {record.pick.confidence:.0%} interval on other prompts of the kind"
        )
    if any(s.part is not None for _, s in speeds):
        yield (
            "Rows of fewer prompts: the speedup is of the requests that both had, moved to the "
            "others by the forecast; t/s is that times no draft's"
        )
    winner, base = picked(record), base_of(record)
    own = speed_of(record, winner) if winner is not None else None
    for candidate, speed in speeds:
        # On the fewer prompts of a row that shows more than the pick, the pick has more, too.
        if speed.part and winner and base and own and (speed.speedup or 0.0) > (own.speedup or inf):
            dealt = common(runs_of(winner.prompts), runs_of(candidate.prompts))
            there = _ratio(common([run for run, _ in dealt], runs_of(base.prompts)))
            if there is not None:
                yield f"On the {speed.part} of {candidate.name} the pick has {there:.2f}x"
    yield from factor_notes(record)
    for candidate, speed in speeds:
        if candidate.ngram is not None and candidate.live is not None and speed.live:
            yield (
                f"{candidate.name} learns from every request: its speed is after "
                f"{plural(candidate.live.requests, 'request')}"
            )


def factor_notes(record: Record) -> Iterator[str]:
    """What forecasts of candidates that did not run are multiplied by, an engine each."""
    engines = {c.engine for c in record.candidates if c.live is None and c.predicted and c.draft}
    for found in record.factors:
        if found.engine in engines:
            where = f" on {found.engine}" if len(record.engines) > 1 else ""
            yield (
                f"Forecasts of the rows that did not run{where} are multiplied by "
                f"{found.end_to_end:.2f}, decoding by {found.decode:.2f} "
                f"({plural(found.drafts, 'draft')} ran)"
            )


def speedups_by_category(record: Record, candidate: Candidate) -> list[Speedup]:
    """Of every category over no draft on the same requests, best first."""
    own, others, factor = candidate.prompts, None, 1.0
    if candidate.live is not None:
        base = base_of(record)
        others = base.prompts if base is not None else None
    elif candidate.predicted is not None:
        bare = _bare(record, candidate.engine)
        own = candidate.predicted.prompts
        others = bare.predicted.prompts if bare is not None and bare.predicted else None
        factor = factor_of(record, candidate.engine)
    found = []
    for name in dict.fromkeys(own.categories if own and others else ()):
        pairs = common(runs_of(own, name), runs_of(others, name))
        ratio = _ratio(pairs)
        if ratio is None:
            continue
        sure = speed_interval(own, others, record.pick.confidence, name, factor)
        each = tuple(factor * one for pair in pairs if (one := _ratio([pair])) is not None)
        found.append(Speedup(name, candidate, factor * ratio, sure, each))
    return sorted(found, key=lambda one: -one.ratio)


def drafts_at_their_best(record: Record) -> list[Speedup]:
    """One a draft, fastest first. What ran live is shown at the length at which it did."""
    speeds = {c.name: s for c in record.candidates if (s := speed_of(record, c)) and s.speedup}

    def speedup(candidate: Candidate) -> float:
        return speeds[candidate.name].speedup or 0.0

    ran = [c for c in record.candidates if c.draft and c.name in speeds and speeds[c.name].live]
    ran.sort(key=lambda c: (c.name != record.pick.candidate, -speedup(c)))
    chosen: dict[str, Candidate] = {}
    for one in (*ran, *(found.candidate for found in best_of_each(record, "predicted"))):
        if one.name in speeds:
            chosen.setdefault(draft_label(record, one.draft or "", one.engine), one)
    best = (Speedup(c.name, c, speedup(c), speeds[c.name].interval) for c in chosen.values())
    return sorted(best, key=lambda one: -one.ratio)


def speed_interval(
    one: PromptFigures | None,
    other: PromptFigures | None,
    confidence: float,
    category: str | None = None,
    factor: float = 1.0,
) -> Interval | None:
    """Of ``factor`` times the end-to-end speed of ``one`` over that of ``other``, on other prompts
    of the kind."""
    mine, theirs = runs_of(one, category), runs_of(other, category)
    found = interval(mine, theirs, WHOLE, None, confidence)
    if found is None:
        return None
    return Interval(factor * found.low, factor * found.high, found.confidence, found.method)


def acceptance_error(found: PromptFigures | None, category: str | None = None) -> float | None:
    """Standard error of acceptance, a share, by how prompts of a category differ; of one or all.

    None with fewer than :data:`FEWEST_PROMPTS` prompts on which something was drafted.
    """
    sums: dict[str, Share] = {}
    for run in runs_of(found, category):
        if run.draft_n and run.draft_n_accepted is not None:
            old = sums.get(run.id, Share(0, 0))
            accepted, drafted = old.numerator + run.draft_n_accepted, old.denominator + run.draft_n
            sums[run.id] = Share(accepted, drafted, run.category)
    return standard_error([*sums.values()]) if len(sums) >= FEWEST_PROMPTS else None


def runs_of(found: PromptFigures | None, category: str | None = None) -> list[PromptRun]:
    """A record's columns as the requests that they came from, of one category or all; those with
    impossible times are left out."""
    if found is None:
        return []
    nothing = (0,) * len(found.ids)
    columns = zip(
        *(found.ids, found.block or nothing, found.order or nothing, found.categories),
        *(found.tokens, found.decode_ms, found.wall_ms, found.drafted, found.accepted),
        strict=False,
    )
    return [
        PromptRun(
            id=name,
            category=kind,
            prompt_n=0,
            prompt_ms=0.0,
            predicted_n=tokens + 1,
            predicted_ms=decode_ms,
            wall_ms=wall_ms,
            draft_n=drafted,
            draft_n_accepted=accepted,
            tokens=None,
            text="",
            stop="",
            block=block,
            order=order,
        )
        for name, block, order, kind, tokens, decode_ms, wall_ms, drafted, accepted in columns
        if category in (None, kind) and wall_ms > 0 and tokens >= 0
    ]


def _ratio(pairs: Sequence[tuple[PromptRun, PromptRun]]) -> float | None:
    """End-to-end speed over the other's, of all requests of which neither has one token only."""
    both = [(a, b) for a, b in pairs if a.predicted_n > 1 and b.predicted_n > 1]
    if not both:
        return None
    mine, theirs = (figures(runs).end_to_end_speed for runs in zip(*both, strict=True))
    return mine / theirs if mine and theirs and isfinite(mine / theirs) else None


def _own(candidate: Candidate, objective: Objective) -> float | None:
    """Tokens a second as measured, or else as forecast."""
    found = candidate.live or (candidate.predicted.figures if candidate.predicted else None)
    return positive(objective.of(found)) if found is not None else None


def positive(value: float | None) -> float | None:
    """``value``, if it is a speed."""
    return value if value is not None and 0 < value < inf else None


def _bare(record: Record, engine: str) -> Candidate | None:
    """No draft on ``engine``."""
    return next((c for c in record.candidates if c.draft is None and c.engine == engine), None)


def _part(candidate: Candidate, base: Candidate) -> str | None:
    """How many of no draft's prompts or requests the candidate was dealt; None: all of them."""
    if candidate.prompts is None or base.prompts is None:
        own, others = (c.live.requests if c.live else 0 for c in (candidate, base))
        return None if own == others else f"{own} of {others} requests"
    mine, theirs = ({(run.id, run.block) for run in runs_of(c.prompts)} for c in (candidate, base))
    if mine == theirs:
        return None
    ids, every = {name for name, _ in mine & theirs}, {name for name, _ in theirs}
    if len(ids) < len(every):
        return f"{len(ids)} of {len(every)} prompts"
    return f"{len(mine & theirs)} of {len(mine | theirs)} requests"
