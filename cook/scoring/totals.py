"""A total over requests, such as accepted / drafted or tokens / seconds, and its interval.

A request is a cluster: its tokens are not independent, so the spread between requests is what
counts, and a long request weighs more. The interval is that of the combined ratio estimator
(Cochran 1977, Sampling Techniques, 6.11) with Student's t. Of a few requests it says nothing: the
t of one degree of freedom is 12.7, and made "0.00 to 18.77" of a figure that is never below 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_FREEDOM = 4
"""Requests less categories, below which there is no interval."""


@dataclass(frozen=True)
class Share:
    """One request's part of a total. ``stratum`` is its category, if there are several."""

    numerator: float
    denominator: float
    stratum: str = ""


@dataclass(frozen=True)
class Total:
    """A ratio of sums over ``requests``. ``low`` and ``high`` None with too few of them."""

    numerator: float
    denominator: float
    requests: int
    confidence: float
    low: float | None
    high: float | None

    @property
    def value(self) -> float:
        """The ratio itself."""
        return self.numerator / self.denominator


def total(
    shares: Sequence[Share],
    *,
    confidence: float = 0.95,
    least: float = 0.0,
    most: float = math.inf,
) -> Total | None:
    """The total of ``shares``; its interval is cut at ``least`` (1 for tokens a cycle) and at
    ``most`` (1 for a rate). None where there is no share, or the denominators are all 0."""
    numerator = math.fsum(s.numerator for s in shares)
    denominator = math.fsum(s.denominator for s in shares)
    if denominator <= 0:
        return None
    low = high = None
    if len(shares) > FEWEST_FREEDOM:
        from cook.scoring.compare import student_quantile

        variance, freedom = _variance(shares)
        if freedom >= FEWEST_FREEDOM:
            reach = student_quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
            value = numerator / denominator
            low, high = max(least, value - reach), min(most, value + reach)
    return Total(numerator, denominator, len(shares), confidence, low, high)


def standard_error(shares: Sequence[Share]) -> float:
    """Of the ratio of sums over ``shares``, two at least, whose denominators are not all 0."""
    return math.sqrt(_variance(shares)[0])


def _variance(shares: Sequence[Share]) -> tuple[float, int]:
    """Of the ratio, and its degrees of freedom; what differs between categories is not chance."""
    from cook.scoring.compare import clustered_variance

    denominator = math.fsum(s.denominator for s in shares)
    ratio = math.fsum(s.numerator for s in shares) / denominator
    each = [(s.numerator - ratio * s.denominator) / denominator for s in shares]
    # A category of one request has no spread of its own: such are one stratum, or of another.
    counts = Counter(s.stratum for s in shares)
    large = [name for name, count in counts.items() if count > 1]
    alone = large[-1] if large and list(counts.values()).count(1) == 1 else ""
    return clustered_variance(each, [s.stratum if s.stratum in large else alone for s in shares])
