"""Text of a record made fit to be shown."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cook.report.plain import clipped, plain

ACTING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


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
