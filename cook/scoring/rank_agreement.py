"""How far two measurements put the same things in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cook.formats.arrays import Floats

FEWEST_PAIRS = 3


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, those that are equal sharing their mean rank.

    None with fewer than :data:`FEWEST_PAIRS` pairs, or where one does not vary.
    """
    if len(one) < FEWEST_PAIRS:
        return None
    ranks = np.array([_ranks(one), _ranks(other)])
    if (ranks.std(axis=1) == 0).any():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> Floats:
    array = np.asarray(values, np.float64)
    _, which, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which])
