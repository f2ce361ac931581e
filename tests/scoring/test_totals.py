"""Totals over requests: the ratio of sums, and how often its interval holds the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.scoring.totals import Share, total

PARTS = st.tuples(st.integers(0, 500), st.integers(1, 500)).map(lambda p: Share(min(p), max(p)))


def test_long_requests_weigh_more() -> None:
    found = total([Share(1, 1), Share(0, 99)])
    assert found.value == 0.01
    assert (found.numerator, found.denominator, found.requests) == (1, 100, 2)


def test_of_little_nothing_is_said() -> None:
    assert total([]) is None
    assert total([Share(0, 0)]) is None
    for requests in (1, 4):
        found = total([Share(3 + i, 4) for i in range(requests)])
        assert (found.low, found.high) == (None, None)


def test_equal_requests_leave_no_doubt() -> None:
    found = total([Share(3, 4)] * 5)
    assert found.low == found.high == found.value
    wild = [Share(5, 1), *(Share(10, 10) for _ in range(5))]  # tokens a cycle: 1 at least
    assert total(wild, least=1.0).low == 1.0


@given(st.lists(PARTS, min_size=5, max_size=30))
def test_the_interval_holds_the_total_and_stays_in_its_bounds(shares: list[Share]) -> None:
    low, high = ends(shares, most=1.0)
    assert 0 <= low <= total(shares).value + 1e-12
    assert total(shares).value - 1e-12 <= high <= 1


def test_what_differs_between_categories_is_not_chance() -> None:
    mixed = [Share(9, 10), Share(10, 10), Share(1, 10), Share(2, 10)] * 2
    sorted_out = [Share(s.numerator, s.denominator, str(s.numerator > 5)) for s in mixed]
    assert total(sorted_out).value == total(mixed).value
    assert width(sorted_out) < width(mixed)


def test_a_category_of_one_still_counts() -> None:
    shares = [*([Share(9, 10, "a"), Share(10, 10, "a")] * 3), Share(0, 10, "b")]
    assert width(shares) > width(shares[:-1])


@pytest.mark.parametrize("lonely", [("c",), ("c", "d")])
def test_a_category_of_one_leaves_the_others_apart(lonely: tuple[str, ...]) -> None:
    shares = [Share(n + i % 2, 10, name) for name, n in (("a", 9), ("b", 1)) for i in range(11)]
    shares += [Share(8, 10, name) for name in lonely]
    assert width(shares) < 0.7 * width([replace(s, stratum="") for s in shares])


@pytest.mark.parametrize("requests", [6, 30])
def test_the_interval_holds_the_truth_as_often_as_it_says(requests: int) -> None:
    dice = random.Random(5)
    hits = 0
    for _ in range(400):
        shares = []
        for _ in range(requests):
            drafted = dice.randrange(40, 400)
            rate = min(1.0, max(0.0, dice.gauss(0.6, 0.12)))
            shares.append(Share(rate * drafted, drafted))
        low, high = ends(shares, most=1.0)
        hits += low <= 0.6 <= high
    assert 0.91 <= hits / 400 <= 0.985


def ends(shares: Sequence[Share], most: float = math.inf) -> tuple[float, float]:
    found = total(shares, most=most)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def width(shares: Sequence[Share]) -> float:
    low, high = ends(shares)
    return high - low
