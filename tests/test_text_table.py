"""Tables and sentences that fit a width, and no word of them broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.text_table import Column, table, width_of, wrapped

FIGURES = [Column("size", "right"), Column("end-to-end t/s", "right")]
COLUMNS = [Column("candidate"), *FIGURES]
ROWS = [["* Ling-IQ1_KT n_max=4", "23.61 GiB", "6.90"], ["  no draft", "-", "6.27"]]
WORDS = [word for row in ROWS for cell in row for word in cell.split()]


def words(lines: list[str]) -> list[str]:
    return [word.strip(",") for line in lines for word in line.split()]


WIDE = """\
candidate                   size  end-to-end t/s
* Ling-IQ1_KT n_max=4  23.61 GiB            6.90
  no draft                     -            6.27"""
TITLES_BROKEN = """\
                                  end-to-end
candidate                   size         t/s
* Ling-IQ1_KT n_max=4  23.61 GiB        6.90
  no draft                     -        6.27"""
TEXT_BROKEN = """\
                          end-to-end
candidate           size         t/s
* Ling-IQ1_KT  23.61 GiB        6.90
    n_max=4
  no draft             -        6.27"""
FIRST_ALONE = """\
candidate
               end-to-end
         size         t/s
* Ling-IQ1_KT n_max=4
    23.61 GiB        6.90
  no draft
            -        6.27"""
LISTED = """\
* Ling-IQ1_KT n_max=4
    size 23.61 GiB,
    end-to-end t/s 6.90
  no draft
    size -,
    end-to-end t/s 6.27"""


@pytest.mark.parametrize(
    ("width", "lines"),
    [(None, WIDE), (46, TITLES_BROKEN), (36, TEXT_BROKEN), (30, FIRST_ALONE), (20, LISTED)],
)
def test_what_gives_way(width: int | None, lines: str) -> None:
    assert "\n".join(table(ROWS, COLUMNS, width)) == lines


@given(st.integers(1, 120))
def test_at_any_width_every_word_is_whole(width: int) -> None:
    lines = table(ROWS, COLUMNS, width)
    assert set(WORDS) <= set(words(lines))
    if width >= 30:
        assert max(map(width_of, lines)) <= width


@given(st.text(st.sampled_from("ab1 .*"), min_size=1), st.integers(1, 40))
def test_a_sentence_keeps_its_words(text: str, width: int) -> None:
    lines = wrapped(text, width, "  ")
    assert " ".join(lines).split() == text.split()
    assert all(width_of(line) <= width or len(line.split()) <= 2 for line in lines)


@pytest.mark.parametrize(("text", "places"), [("abc", 3), ("漢字", 4), ("é", 1), ("e\u0301", 1)])
def test_width_is_what_a_terminal_takes(text: str, places: int) -> None:
    assert width_of(text) == places
