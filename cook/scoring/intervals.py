"""Comparisons between candidates: their requests as paired per-prompt figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun

if TYPE_CHECKING:
    from cook.scoring.statistics import Measured

K = TypeVar("K")

SEED = 20_260_101
FEWEST_PROMPTS = 8
"""Below this many prompts nothing is said of how sure a figure is."""


def paired(
    runs: Mapping[K, Sequence[PromptRun]], objective: Objective, weights: Mapping[str, float] | None
) -> Measured[K] | None:
    """Numerators and denominators of every candidate on the prompts that all of them ran.

    A category's weight is its share of the tokens, whatever the length of its replies. None
    with fewer than two common prompts, or where some candidate has no such figure.
    """
    import numpy as np

    from cook.scoring.statistics import Measured

    by_id = [{run.id: run for run in candidate} for candidate in runs.values()]
    common = [run for run in next(iter(runs.values())) if all(run.id in c for c in by_id)]
    parts = [[objective.parts(c[run.id]) for run in common] for c in by_id]
    if len(common) < 2 or any(p is None for row in parts for p in row):
        return None
    figures = np.array(parts, dtype=np.float64)
    categories = sorted({run.category for run in common})
    stratum = np.array([categories.index(run.category) for run in common], dtype=np.int64)
    weight = np.ones(len(common))
    if weights is not None:
        tokens = np.array([run.predicted_n - 1 for run in common], dtype=np.float64)
        for index, category in enumerate(categories):
            members = stratum == index
            weight[members] = weights.get(category, 1.0) / max(tokens[members].sum(), 1.0)
    if (figures[:, :, 1] @ weight <= 0).any():
        return None  # it drafted nothing, or nothing that weighs anything
    return Measured(tuple(runs), figures[:, :, 0], figures[:, :, 1], stratum, weight)
