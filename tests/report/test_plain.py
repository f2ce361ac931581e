"""Text of a record made fit to be shown."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cook.report.plain import clipped, plain


@given(st.text())
def test_nothing_is_left_that_acts(text: str) -> None:
    for character in plain(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
        assert unicodedata.bidirectional(character) not in {"RLO", "LRO", "RLE", "LRE", "PDF"}
    assert len(plain(text)) == len(text)


@given(st.text(max_size=30), st.integers(1, 20))
def test_clipped_text_fits_and_says_so(text: str, most: int) -> None:
    found = clipped(text, most)
    assert len(found) <= most
    assert (found == plain(text)) == (len(text) <= most or plain(text) == found)


def test_surrogates_and_overrides_become_visible() -> None:
    assert plain("a\x00b\u202ec\ud800\n") == "a\ufffdb\ufffdc\ufffd\n"
    assert clipped("abcd", 3) == "ab…"
