"""Measurement noise, estimated from repeated passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.scoring.compare import student_quantile

MEDIAN = math.sqrt(math.pi / 2)
"""Spread of a median over that of a mean; an upper bound for few values."""


@dataclass(frozen=True)
class LogSpread:
    """Standard deviation ``sd`` of a logarithm, known by ``freedom`` degrees of freedom."""

    sd: float
    freedom: int

    def of_median(self, passes: int) -> LogSpread:
        """Of the median over so many passes, of each of which this is the spread."""
        return replace(self, sd=self.sd * MEDIAN / math.sqrt(passes))

    def half_width(self, confidence: float = 0.95) -> float:
        """Two such measurements of one file differ by less than this share at ``confidence``."""
        quantile = student_quantile(0.5 + confidence / 2, self.freedom)
        return math.expm1(quantile * math.sqrt(2.0) * self.sd)


def noise_of(log_speeds: Floats) -> LogSpread:
    """Of one pass, from log-speeds [candidates, passes] of the same files.

    What all candidates of a pass share is drift of the machine, which falls on all alike; the
    rest, pooled over candidates, is noise.
    """
    if log_speeds.ndim != 2 or min(log_speeds.shape) < 2:
        raise InputError("timing noise needs two candidates and two passes at least")
    rest = log_speeds - log_speeds.mean(axis=1, keepdims=True)
    rest = rest - rest.mean(axis=0, keepdims=True)
    freedom = (log_speeds.shape[0] - 1) * (log_speeds.shape[1] - 1)
    return LogSpread(math.sqrt(float((rest**2).sum()) / freedom), freedom)
