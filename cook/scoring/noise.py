"""Measurement noise, estimated from repeated passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.scoring.student import student_quantile

MEDIAN = math.sqrt(math.pi / 2)
"""LogSpread of a median over that of a mean; an upper bound for few values."""


@dataclass(frozen=True)
class LogSpread:
    """Standard deviation ``sd`` of a logarithm, known by ``freedom`` degrees of freedom."""

    sd: float
    freedom: int


@dataclass(frozen=True)
class TimingNoise:
    """LogSpread of one measured log-speed about its true value, from repeated passes.

    ``sd`` is that of a single pass, by ``freedom`` degrees of freedom, over ``passes`` passes.
    """

    sd: float
    freedom: int
    passes: int

    @property
    def of_median(self) -> LogSpread:
        """Of the median over all passes."""
        return LogSpread(self.sd * MEDIAN / math.sqrt(self.passes), self.freedom)

    def half_width(self, confidence: float = 0.95) -> float:
        """Two measurements of one file differ by less than this share at ``confidence``.

        A measurement is one pass, as a live run is.
        """
        quantile = student_quantile(0.5 + confidence / 2, self.freedom)
        return math.expm1(quantile * math.sqrt(2.0) * self.sd)


def noise_of(log_speeds: npt.NDArray[np.float64]) -> TimingNoise:
    """From log-speeds [candidates, passes] of the same files measured in several passes.

    What all candidates of a pass share is drift of the machine, which falls on all alike; the
    rest, pooled over candidates, is noise.
    """
    if log_speeds.ndim != 2 or log_speeds.shape[0] < 2 or log_speeds.shape[1] < 2:
        raise InputError("timing noise needs two candidates and two passes at least")
    rest = log_speeds - log_speeds.mean(axis=1, keepdims=True)
    rest = rest - rest.mean(axis=0, keepdims=True)
    freedom = (log_speeds.shape[0] - 1) * (log_speeds.shape[1] - 1)
    return TimingNoise(math.sqrt(float((rest**2).sum()) / freedom), freedom, log_speeds.shape[1])
