"""Names fit to be shown, and figures in one form each; what is missing is never a number."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.record.record import Quality
from cook.report.texts import (
    clipped,
    counts,
    divergence,
    named,
    perplexity,
    plain,
    tokens_per_s,
    with_error,
)
from cook.scoring.compare import figures
from tests.report.records import requests

ACTING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
QUALITY = Quality(4.0, 0.05, 20, 512, 1.02, 0.01, 0.001)


@given(st.text())
def test_nothing_is_left_that_acts(text: str) -> None:
    for character in plain(text):
        assert character in "\n\t" or unicodedata.category(character) not in ACTING


@given(st.text(max_size=30), st.integers(1, 20))
def test_clipped_text_fits_and_says_so(text: str, most: int) -> None:
    found = clipped(text, most)
    assert len(found) <= most
    assert (found == plain(text)) == (len(plain(text)) <= most)


def test_surrogates_and_overrides_become_visible() -> None:
    assert plain("a\x00b\u202ec\ud800\n") == "a\\x00b\\u202ec\\ud800\n"
    assert clipped("abcd", 3) == "ab…"


def test_names_are_counted_beyond_some() -> None:
    assert named("abc", 3) == "a, b, c"
    assert named("abcde", 3) == "a, b, c and 2 more"


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
    assert counts(None) is counts(figures(requests(100.0))) is None
    drafting = figures(requests(100.0, 4))
    assert counts(drafting) == f"{drafting.accepted}/{drafting.drafted}"
