"""How candidates of a record compare prompt by prompt, each ratio with its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from cook.record.measured import Interval, PromptFigures
from cook.scoring.intervals import FEWEST_PROMPTS, SEED
from cook.scoring.totals import Share, standard_error

Counts = tuple[float, float, str]
"""Numerator, denominator and category of one prompt."""


def acceptance_ratio(
    one: PromptFigures | None, other: PromptFigures | None, confidence: float
) -> Interval | None:
    """Interval of acceptance(one) / acceptance(other) over their common prompts, paired.

    None with fewer than :data:`FEWEST_PROMPTS` common prompts on which both drafted, or without
    counts by prompt.
    """
    return _ratio(one, other, _accepted, confidence)


def acceptance_error(found: PromptFigures | None, category: str | None = None) -> float | None:
    """Standard error of acceptance, a share, by how prompts of a category differ; of one or all.

    None with fewer than :data:`FEWEST_PROMPTS` prompts on which something was drafted.
    """
    counts = _accepted(found).values() if found is not None else ()
    shares = [Share(a, d, name) for a, d, name in counts if category in (None, name)]
    return standard_error(shares) if len(shares) >= FEWEST_PROMPTS else None


def speed_ratio(
    one: PromptFigures | None, other: PromptFigures | None, confidence: float
) -> Interval | None:
    """The same of their end-to-end speeds. It knows how prompts differ, and no other error."""
    return _ratio(one, other, _timed, confidence)


def speed_ratios(one: PromptFigures | None, other: PromptFigures | None) -> dict[str, list[float]]:
    """Category -> the end-to-end speed of ``one`` over ``other``'s on each common prompt."""
    found: dict[str, list[float]] = {}
    if one is None or other is None:
        return found
    mine, theirs = _timed(one), _timed(other)
    for name, (tokens, wall_ms, category) in mine.items():
        if name in theirs and theirs[name][0] > 0:
            ratio = (tokens / wall_ms) / (theirs[name][0] / theirs[name][1])
            found.setdefault(category, []).append(ratio)
    return found


def _ratio(
    one: PromptFigures | None,
    other: PromptFigures | None,
    parts: Callable[[PromptFigures], Mapping[str, Counts]],
    confidence: float,
) -> Interval | None:
    import numpy as np

    from cook.scoring.statistics import Measured, ratio_interval

    if one is None or other is None:
        return None
    mine, theirs = parts(one), parts(other)
    common = [name for name in mine if name in theirs]
    if len(common) < FEWEST_PROMPTS:
        return None
    categories = sorted({mine[name][2] for name in common})
    table = [[side[name] for name in common] for side in (mine, theirs)]
    top = np.array([[row[0] for row in side] for side in table], dtype=np.float64)
    bottom = np.array([[row[1] for row in side] for side in table], dtype=np.float64)
    if (bottom.sum(axis=1) <= 0).any() or top[1].sum() <= 0:
        return None
    if not (np.isfinite(top).all() and np.isfinite(bottom).all()):
        return None
    measured = Measured(
        candidates=("one", "other"),
        numerator=top,
        denominator=bottom,
        stratum=np.array([categories.index(mine[name][2]) for name in common], dtype=np.int64),
        weight=np.ones(len(common)),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        found = ratio_interval(measured, 0, 1, np.random.default_rng(SEED), confidence=confidence)
    return found if isfinite(found.low) and isfinite(found.high) else None


def _accepted(found: PromptFigures) -> dict[str, Counts]:
    """Accepted over drafted tokens, where something was drafted."""
    columns = zip(found.ids, found.accepted, found.drafted, found.categories, strict=False)
    return {
        name: (accepted, drafted, category)
        for name, accepted, drafted, category in columns
        if accepted is not None and drafted
    }


def _timed(found: PromptFigures) -> dict[str, Counts]:
    """Tokens over milliseconds from request to last token."""
    columns = zip(found.ids, found.tokens, found.wall_ms, found.categories, strict=False)
    return {name: (tokens, ms, category) for name, tokens, ms, category in columns if ms > 0}
