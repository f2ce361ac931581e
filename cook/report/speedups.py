"""End-to-end speedups of a record's candidates over no draft, live and predicted, with intervals.

A speedup is of one kind: live over live, or predicted over predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from cook.record.measured import Figures, Interval, PromptFigures
from cook.record.record import Candidate, Record
from cook.report.compared import (
    Basis,
    best_of_each,
    categories_of,
    draft_label,
    figures_of,
    finite,
    picked,
    prompts_of,
    value,
)
from cook.report.ratios import speed_ratio, speed_ratios

TRIFLE = 0.05
"""Forecasts that are off by no more than this share contradict nothing."""


@dataclass(frozen=True)
class Speedup:
    """``ratio`` of the end-to-end speed to no draft's, over ``prompts`` prompts.

    ``interval`` None: too few prompts to say.
    """

    ratio: float
    interval: Interval | None
    prompts: int

    def ends_within(self, low: float, high: float) -> tuple[float, float] | None:
        """The interval, as far as a plot from ``low`` to ``high`` shows it."""
        if self.interval is None:
            return None
        return max(self.interval.low, low), min(self.interval.high, high)

    @property
    def told(self) -> str:
        """``1.41x (1.32 to 1.50)``."""
        if self.interval is None:
            return f"{self.ratio:.2f}x"
        return f"{self.ratio:.2f}x ({self.interval.low:.2f} to {self.interval.high:.2f})"


@dataclass(frozen=True)
class DraftSpeedup:
    """One draft at its best draft length: where it ran live at that, else where it is predicted.

    ``draft`` is its label; at least one of the two is there.
    """

    draft: str
    candidate: Candidate
    live: Speedup | None
    predicted: Speedup | None

    @property
    def best(self) -> float:
        """What it is ordered by: live where it ran live."""
        found = self.live or self.predicted
        assert found is not None, "a draft without a speedup has no row"
        return found.ratio

    @property
    def length(self) -> int | None:
        settings = self.candidate.settings
        return settings.n_max if settings else None


def base_of(record: Record, kind: Basis) -> Candidate | None:
    """The fastest no draft of any engine: what speedups are against."""
    found = [
        (speed, c)
        for c in record.candidates
        if c.draft is None and (speed := _speed(figures_of(c, kind))) is not None
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def speedup(record: Record, candidate: Candidate, kind: Basis) -> Speedup | None:
    """The candidate's over no draft; None where either has no speed of that kind."""
    base, found = base_of(record, kind), figures_of(candidate, kind)
    mine = _speed(found)
    theirs = _speed(figures_of(base, kind)) if base else None
    if base is None or found is None or mine is None or theirs is None:
        return None
    if kind == "live":
        ratio = finite(candidate.speedup)
        own = candidate.speedup_interval
        return Speedup(ratio or mine / theirs, _usable(own), found.requests)
    interval = _of_prompts(record, candidate, base, kind)
    if interval is not None and not interval.low <= mine / theirs <= interval.high:
        interval = None
    return Speedup(mine / theirs, interval, found.requests)


def speedups_by_category(
    record: Record, candidate: Candidate, kind: Basis
) -> dict[str, tuple[Speedup, list[float]]]:
    """Category -> its speedup, and those of its prompts one by one where they are known."""
    base = base_of(record, kind)
    if base is None:
        return {}
    mine, theirs = categories_of(candidate, kind), categories_of(base, kind)
    own, others = prompts_of(candidate, kind), prompts_of(base, kind)
    each = speed_ratios(own, others)
    found = {}
    for category, figures in mine.items():
        speed, reference = _speed(figures), _speed(theirs.get(category))
        if speed is None or reference is None:
            continue
        interval = speed_ratio(_only(own, category), others, record.pick.confidence)
        found[category] = (
            Speedup(speed / reference, _usable(interval), figures.requests),
            [r for r in each.get(category, []) if finite(r) is not None],
        )
    return found


def drafts_at_their_best(record: Record) -> list[DraftSpeedup]:
    """A row a draft, fastest first. What ran live is shown at the length at which it did."""
    chosen: dict[str, Candidate] = {}
    for candidate in record.candidates:
        if candidate.draft is None or speedup(record, candidate, "live") is None:
            continue
        name = draft_label(record, candidate.draft, candidate.engine)
        if name not in chosen or _live(candidate) > _live(chosen[name]):
            chosen[name] = candidate
    winner = picked(record)
    if winner is not None and winner.draft is not None and winner.live is not None:
        chosen[draft_label(record, winner.draft, winner.engine)] = winner
    kinds: tuple[Basis, Basis] = ("predicted", "live")
    for kind in kinds:
        for one in best_of_each(record, kind):
            chosen.setdefault(one.draft, one.candidate)
    rows = [
        DraftSpeedup(name, c, speedup(record, c, "live"), speedup(record, c, "predicted"))
        for name, c in chosen.items()
    ]
    return sorted((r for r in rows if r.live or r.predicted), key=lambda row: -row.best)


def contradicted(candidate: Candidate) -> bool:
    """Whether its live run lies outside of what was predicted, by more than :data:`TRIFLE`."""
    found = candidate.predicted
    if found is None or candidate.live is None:
        return False
    off_by, interval = finite(found.off_by), found.off_by_interval
    if off_by is None or interval is None:
        return False
    return abs(off_by) > TRIFLE and not interval.low <= 1 <= interval.high


def _live(candidate: Candidate) -> float:
    return value(candidate.live, "end_to_end_speed") if candidate.live else float("-inf")


def _speed(figures: Figures | None) -> float | None:
    found = finite(figures.end_to_end_speed) if figures else None
    return found if found is not None and found > 0 else None


def _usable(found: Interval | None) -> Interval | None:
    if found is None or finite(found.low) is None or finite(found.high) is None:
        return None
    return found


def _only(found: PromptFigures | None, category: str) -> PromptFigures | None:
    """The prompts of one category."""
    if found is None:
        return None
    kept = [i for i, name in enumerate(found.categories) if name == category]
    columns = {f.name: tuple(getattr(found, f.name)[i] for i in kept) for f in fields(found)}
    return PromptFigures(**columns)


def _of_prompts(
    record: Record, candidate: Candidate, base: Candidate, kind: Basis
) -> Interval | None:
    mine, theirs = prompts_of(candidate, kind), prompts_of(base, kind)
    return _usable(speed_ratio(mine, theirs, record.pick.confidence))
