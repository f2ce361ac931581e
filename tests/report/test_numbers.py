"""Figures in one form each; what is missing is never a number."""

from __future__ import annotations

from dataclasses import replace

from cook.record.measured import Interval, Quality
from cook.report.numbers import counts, divergence, number, perplexity, ratio, with_error
from tests.report.records import figures

QUALITY = Quality(4.0, 0.05, 20, 512, 1.02, 0.01, 0.001)


def test_a_figure_has_its_error_where_there_is_one() -> None:
    assert with_error(3.14159, 0.00123) == "3.1416 ± 0.0012"
    assert with_error(3.14159, None) == "3.1416"
    assert with_error(None, 0.1) is None
    assert perplexity(QUALITY) == "4.0000 ± 0.0500"
    assert divergence(QUALITY, 5) == "0.01000 ± 0.00100"
    assert divergence(replace(QUALITY, mean_kld_error=None)) == "0.0100"
    assert perplexity(None) is divergence(None) is None


def test_a_ratio_has_its_interval_where_there_is_one() -> None:
    assert ratio(1.414, Interval(1.32, 1.5, 0.95, "bootstrap")) == "1.41x (1.32-1.50)"
    assert ratio(1.414, None) == "1.41x"
    assert ratio(None, None) is None


def test_what_is_missing_is_nothing() -> None:
    assert number(None, ".2f") is None
    assert number(0.0, ".2f") == "0.00"
    assert counts(None) is counts(figures()) is None
    drafting = figures(n_max=4)
    assert counts(drafting) == f"{drafting.accepted}/{drafting.drafted}"
