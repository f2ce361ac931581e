"""Figures in one form each; what is missing is never a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.measured import Quality
from cook.report.numbers import (
    counts,
    divergence,
    number,
    perplexity,
    tokens_per_s,
    with_error,
)
from cook.scoring.figures import figures
from tests.report.records import requests

QUALITY = Quality(4.0, 0.05, 20, 512, 1.02, 0.01, 0.001)


def test_a_figure_has_its_error_where_there_is_one() -> None:
    assert with_error(3.14159, 0.00123) == "3.1416 ± 0.0012"
    assert with_error(3.14159, None) == "3.1416"
    assert with_error(None, 0.1) is None
    assert perplexity(QUALITY) == "4.0000 ± 0.0500"
    assert divergence(QUALITY, 5) == "0.01000 ± 0.00100"
    assert divergence(replace(QUALITY, mean_kld_error=None)) == "0.0100"
    assert perplexity(None) is divergence(None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234.50"), (10.0, "10.00"), (9.8765, "9.877"), (0.5, "0.5000"), (0.0, "0.00")],
)
def test_a_speed_has_four_digits_and_two_decimals(value: float, text: str) -> None:
    assert tokens_per_s(value) == text
    assert tokens_per_s(None) is None


def test_what_is_missing_is_nothing() -> None:
    assert number(None, ".2f") is None
    assert number(0.0, ".2f") == "0.00"
    assert counts(None) is counts(figures(requests(100.0))) is None
    drafting = figures(requests(100.0, 4))
    assert counts(drafting) == f"{drafting.accepted}/{drafting.drafted}"
