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
)
from cook.scoring.compare import figures
from tests.report.records import requests

ACTING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
QUALITY = Quality(4.0, 0.05, 20, 512, 1.02, 0.01, 0.001)


@given(st.text(max_size=30), st.integers(1, 20))
def test_nothing_is_left_that_acts_and_clipped_text_fits_and_says_so(text: str, most: int) -> None:
    clean, short = plain(text), clipped(text, most)
    for character in clean:
        assert character in "\n\t" or unicodedata.category(character) not in ACTING
    assert len(short) <= most
    assert (short == clean) == (len(clean) <= most)


def test_what_acts_becomes_visible_and_names_are_counted_beyond_some() -> None:
    assert plain("a\x00b\u202ec\ud800\n") == "a\\x00b\\u202ec\\ud800\n"
    assert clipped("abcd", 3) == "ab…"
    assert named("abc", 3) == "a, b, c"
    assert named("abcde", 3) == "a, b, c and 2 more"


def test_a_figure_has_its_error_where_there_is_one() -> None:
    assert perplexity(None) is divergence(None) is None
    assert perplexity(QUALITY) == "4.0000 ± 0.0500"
    assert divergence(QUALITY, 5) == "0.01000 ± 0.00100"
    assert divergence(replace(QUALITY, mean_kld_error=None)) == "0.0100"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1234.50"), (10.0, "10.00"), (9.8765, "9.877"), (0.0, "0.00"), (None, None)],
)
def test_a_speed_has_four_digits_and_two_decimals(value: float | None, text: str | None) -> None:
    assert tokens_per_s(value) == text


def test_what_was_not_drafted_has_no_counts() -> None:
    assert counts(None) is counts(figures(requests(100.0))) is None
    assert counts(figures(requests(100.0, 4))) == "1550/2584"
