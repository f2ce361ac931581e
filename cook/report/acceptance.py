"""Whether two drafts differ in acceptance, from the counts of each prompt in the record."""

from __future__ import annotations

from math import isfinite

from cook.record.measured import Interval, PromptFigures
from cook.scoring.intervals import FEWEST_PROMPTS, SEED


def acceptance_ratio(
    one: PromptFigures | None, other: PromptFigures | None, confidence: float
) -> Interval | None:
    """Interval of acceptance(one) / acceptance(other) over their common prompts, paired.

    None with fewer than :data:`FEWEST_PROMPTS` common prompts on which both drafted, or without
    counts by prompt.
    """
    import numpy as np

    from cook.scoring.statistics import Measured, ratio_interval

    if one is None or other is None:
        return None
    mine, theirs = _counts(one), _counts(other)
    common = [name for name in mine if name in theirs]
    if len(common) < FEWEST_PROMPTS:
        return None
    categories = sorted({mine[name][2] for name in common})
    table = [[side[name] for name in common] for side in (mine, theirs)]
    accepted = np.array([[row[0] for row in side] for side in table], dtype=np.float64)
    drafted = np.array([[row[1] for row in side] for side in table], dtype=np.float64)
    if (drafted.sum(axis=1) <= 0).any() or accepted[1].sum() <= 0:
        return None
    measured = Measured(
        candidates=("one", "other"),
        numerator=accepted,
        denominator=drafted,
        stratum=np.array([categories.index(mine[name][2]) for name in common], dtype=np.int64),
        weight=np.ones(len(common)),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        found = ratio_interval(measured, 0, 1, np.random.default_rng(SEED), confidence=confidence)
    return found if isfinite(found.low) and isfinite(found.high) else None


def _counts(found: PromptFigures) -> dict[str, tuple[int, int, str]]:
    """(accepted, drafted, category) by prompt, where something was drafted."""
    columns = zip(found.ids, found.accepted, found.drafted, found.categories, strict=False)
    return {
        name: (accepted, drafted, category)
        for name, accepted, drafted, category in columns
        if accepted is not None and drafted
    }
