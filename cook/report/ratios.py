"""How the requests of two candidates compare, one by one and in all, from a record's columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cook.record.measured import Interval, PromptFigures
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.report.compared import finite
from cook.scoring.compare import FEWEST_PROMPTS, common, interval
from cook.scoring.figures import figures
from cook.scoring.totals import Share, standard_error

RequestKey = tuple[str, int]
"""(prompt's id, block of prompts): an id comes again in another block."""


def keys(found: PromptFigures) -> tuple[RequestKey, ...]:
    """Of every request, by which those of two candidates are paired."""
    block = found.block or (0,) * len(found.ids)
    return tuple(zip(found.ids, block, strict=False))


def acceptance_error(found: PromptFigures | None, category: str | None = None) -> float | None:
    """Standard error of acceptance, a share, by how prompts of a category differ; of one or all.

    None with fewer than :data:`FEWEST_PROMPTS` prompts on which something was drafted.
    """
    sums: dict[str, Share] = {}
    for run in prompt_runs(found, category):
        if run.draft_n and run.draft_n_accepted is not None:
            old = sums.get(run.id, Share(0, 0))
            accepted, drafted = old.numerator + run.draft_n_accepted, old.denominator + run.draft_n
            sums[run.id] = Share(accepted, drafted, run.category)
    return standard_error([*sums.values()]) if len(sums) >= FEWEST_PROMPTS else None


def speed_interval(
    one: PromptFigures | None,
    other: PromptFigures | None,
    confidence: float,
    category: str | None = None,
) -> Interval | None:
    """Of the end-to-end speed of ``one`` over that of ``other`` on other prompts of the kind."""
    mine, theirs = prompt_runs(one, category), prompt_runs(other, category)
    return usable(interval(mine, theirs, Objective.END_TO_END_SPEED, None, confidence))


def speed_ratios(
    one: PromptFigures,
    other: PromptFigures,
    *,
    category: str | None = None,
    among: Collection[RequestKey] | None = None,
) -> tuple[float | None, list[float]]:
    """End-to-end speed of ``one`` over ``other``'s: of all requests that both had, or those of a
    category or ``among`` them, and of each."""
    pairs = [
        (a, b)
        for a, b in common(prompt_runs(one, category), prompt_runs(other, category))
        if a.predicted_n > 1 and b.predicted_n > 1 and (among is None or (a.id, a.block) in among)
    ]
    return _ratio(pairs), [ratio for pair in pairs if (ratio := _ratio([pair])) is not None]


def _ratio(pairs: Sequence[tuple[PromptRun, PromptRun]]) -> float | None:
    if not pairs:
        return None
    mine, theirs = (figures(runs).end_to_end_speed for runs in zip(*pairs, strict=True))
    return finite(mine / theirs) if mine and theirs else None


def usable(found: Interval | None) -> Interval | None:
    """``found``, if its ends are numbers."""
    if found is None or finite(found.low) is None or finite(found.high) is None:
        return None
    return found


def prompt_runs(found: PromptFigures | None, category: str | None = None) -> list[PromptRun]:
    """A record's columns as the requests that they came from, of one category or all; those with
    impossible times are left out."""
    if found is None:
        return []
    columns = zip(
        *(keys(found), found.categories, found.tokens, found.decode_ms, found.wall_ms),
        *(found.drafted, found.accepted),
        strict=False,
    )
    return [
        PromptRun(
            id=key[0],
            category=name,
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
            block=key[1],
        )
        for key, name, tokens, decode_ms, wall_ms, drafted, accepted in columns
        if category in (None, name) and 0 < wall_ms < float("inf") and tokens >= 0
    ]
