"""A total over requests, such as accepted / drafted or tokens / seconds, and its interval.

A request is a cluster: its tokens are not independent, so the spread between requests is what
counts, and a long request weighs more. The interval is that of the combined ratio estimator
(Cochran 1977, Sampling Techniques, 6.11) with Student's t. Of a few requests it says nothing: the
t of one degree of freedom is 12.7, and made "0.00 to 18.77" of a figure that is never below 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

FEWEST_FREEDOM = 4
"""Requests less categories, below which there is no interval."""


@dataclass(frozen=True)
class Share:
    """One request's part of a total. ``stratum`` is its category, if there are several."""

    numerator: float
    denominator: float
    stratum: Hashable = None


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
    ``most`` (1 for a rate).

    Categories are strata: what differs between them is not chance. A category of one request
    shows no spread of its own and is pooled with the others of its kind. None where there is no
    share, or the denominators are all 0.
    """
    numerator = math.fsum(s.numerator for s in shares)
    denominator = math.fsum(s.denominator for s in shares)
    if denominator <= 0:
        return None
    freedom = len(shares) - len(_strata(shares))
    if freedom < FEWEST_FREEDOM:
        return Total(numerator, denominator, len(shares), confidence, None, None)
    from cook.scoring.student import student_quantile

    ratio = numerator / denominator
    reach = student_quantile(0.5 + confidence / 2, freedom) * standard_error(shares)
    low, high = max(least, ratio - reach), min(most, ratio + reach)
    return Total(numerator, denominator, len(shares), confidence, low, high)


def standard_error(shares: Sequence[Share]) -> float:
    """Of the ratio of sums over ``shares``, whose denominators are not all 0."""
    denominator = math.fsum(s.denominator for s in shares)
    ratio = math.fsum(s.numerator for s in shares) / denominator
    strata = _strata(shares)
    variance = sum(_variance([s.numerator - ratio * s.denominator for s in m]) for m in strata)
    return math.sqrt(variance) / denominator


def _strata(shares: Sequence[Share]) -> list[list[Share]]:
    groups: dict[Hashable, list[Share]] = {}
    for share in shares:
        groups.setdefault(share.stratum, []).append(share)
    lonely = [s for members in groups.values() if len(members) < 2 for s in members]
    found = [members for members in groups.values() if len(members) >= 2]
    if len(lonely) > 1 or not found:
        found.append(lonely)
    elif lonely:
        found[-1] = [*found[-1], *lonely]
    return [members for members in found if members]


def _variance(residuals: Sequence[float]) -> float:
    """Variance of the sum of one stratum's residuals."""
    n = len(residuals)
    mean = math.fsum(residuals) / n
    return n / (n - 1) * math.fsum((r - mean) ** 2 for r in residuals) if n > 1 else 0.0
