"""Intervals of what is compared: candidates on the same prompts, resampled by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cook.report.record import Interval
from cook.steps.live import PromptRun

RESAMPLES = 4000
SEED = 20_260_101
METHOD = "stratified cluster bootstrap over prompts"


def paired_ratio(
    one: Sequence[PromptRun],
    other: Sequence[PromptRun],
    figure: str,
    weights: Mapping[str, float] | None,
    confidence: float,
) -> Interval | None:
    """Interval of figure(one)/figure(other) by a cluster bootstrap over their common prompts,
    stratified by category: whole prompts are drawn, the same for both, since tokens of one
    prompt are not independent (scoring.md section 3).

    None with fewer than two common prompts, or where the figure does not exist (no draft has
    no acceptance).
    """
    import numpy as np

    theirs = {run.id: run for run in other}
    pairs = [(run, theirs[run.id]) for run in one if run.id in theirs]
    if len(pairs) < 2:
        return None
    parts = np.array([[_parts(a, figure), _parts(b, figure)] for a, b in pairs])
    if np.isnan(parts).any():
        return None
    strata: dict[str, list[int]] = {}
    for index, (run, _) in enumerate(pairs):
        strata.setdefault(run.category, []).append(index)
    generator = np.random.default_rng(SEED)
    totals = np.zeros((RESAMPLES, 2, 2))
    for category, members in strata.items():
        drawn = generator.integers(len(members), size=(RESAMPLES, len(members)))
        sums = parts[np.array(members)][drawn].sum(axis=1)
        if weights is not None:
            # A category's share of the tokens is its weight, whatever its replies' length.
            scale = weights.get(category, 1.0) / np.maximum(sums[:, :, :1], 1e-300)
            sums = sums * scale
        totals += sums
    values = totals[:, :, 0] / totals[:, :, 1]
    if figure == "acceptance_length":
        values = 1 + values
    ratio = values[:, 0] / values[:, 1]
    tail = (1 - confidence) / 2
    low, high = np.quantile(ratio[np.isfinite(ratio)], [tail, 1 - tail])
    return Interval(float(low), float(high), confidence, METHOD)


def _parts(run: PromptRun, figure: str) -> tuple[float, float]:
    """Numerator and denominator of one prompt's share of the figure; NaN where it has none."""
    if figure == "end_to_end_speed":
        return float(run.predicted_n - 1), run.wall_ms
    if figure == "decode_speed":
        return float(run.predicted_n - 1), run.predicted_ms
    if figure == "acceptance":
        return float(run.draft_n_accepted or 0), _or_nan(run.draft_n)
    return float(run.draft_n_accepted or 0), _or_nan(run.cycles)


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else float(value)
