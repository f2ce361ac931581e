"""The noise floor: what differs between two measurements of the same thing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cook.errors import InputError
from cook.speculation.statistics import Measured, resampled_ratios


@dataclass(frozen=True)
class NoiseFloor:
    """Two measurements of one candidate: their ratio, and how far it may be from 1 at 95 %.

    Differences between candidates below ``half_width`` (a fraction) are not to be believed.
    """

    ratio: float
    half_width: float


def noise_floor(twice: Measured, rng: np.random.Generator, *, resamples: int = 4000) -> NoiseFloor:
    """From the same file measured twice, or f16 replayed at two batch shapes.

    The half width covers both the observed difference and its sampling error.
    """
    if len(twice.candidates) != 2:
        raise InputError("a noise floor needs two measurements of one candidate")
    totals = resampled_ratios(twice, rng, resamples)
    first, second = twice.ratios()
    spread = np.abs(np.log(totals[0] / totals[1]))
    observed = abs(float(np.log(first / second)))
    return NoiseFloor(
        ratio=float(first / second),
        half_width=float(np.expm1(max(observed, float(np.quantile(spread, 0.95))))),
    )
