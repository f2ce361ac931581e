"""Quantiles of Student's t."""

from __future__ import annotations

import pytest

from cook.scoring.student import student_quantile


@pytest.mark.parametrize(
    ("p", "freedom", "quantile"),
    # any table of Student's t
    [
        (0.975, 1, 12.706),
        (0.975, 5, 2.571),
        (0.95, 10, 1.812),
        (0.995, 30, 2.750),
        (0.9999, 8, 6.442),
    ],
)
def test_student_quantiles(p: float, freedom: int, quantile: float) -> None:
    assert student_quantile(p, freedom) == pytest.approx(quantile, abs=2e-3)
