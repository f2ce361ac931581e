"""Student's t, for intervals of few values."""

from __future__ import annotations

import functools
import math


@functools.cache
def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for p in (0.5, 1), by bisection of the exact distribution."""
    low, high = 0.0, 1e3
    while student_upper(high, freedom) > 1.0 - p:
        low, high = high, high * 1e3
    for _ in range(80):
        middle = 0.5 * (low + high)
        if student_upper(middle, freedom) > 1.0 - p:
            low = middle
        else:
            high = middle
    return high


def student_upper(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0: half the regularised incomplete beta function."""
    return 0.5 * _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by Lentz's continued fraction (Numerical Recipes 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1.0), tiny)
    h = d
    for m in range(1, 400):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return front * h / a
