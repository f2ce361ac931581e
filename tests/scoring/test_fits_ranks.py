"""Orders compared: by ranks, with ties, and nothing said of too few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.scoring.fits import rank_correlation


def test_known_orders() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 1000, 1001]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # Spearman 1904, with one tie: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=20))
def test_it_does_not_depend_on_the_scale(pairs: list[tuple[int, int]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found = rank_correlation(one, other)
    if found is None:
        assert len(set(one)) == 1 or len(set(other)) == 1
    else:
        assert -1 - 1e-9 <= found <= 1 + 1e-9
        assert rank_correlation([a**3 + 5 for a in one], other) == pytest.approx(found)
        assert rank_correlation(other, one) == pytest.approx(found)


def test_too_few_say_nothing() -> None:
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
