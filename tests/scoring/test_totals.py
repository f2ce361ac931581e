"""Totals over requests: the ratio of sums, and how often its interval holds the truth."""

from __future__ import annotations

import random
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


def test_nothing_to_divide_by() -> None:
    assert total([]) is None
    assert total([Share(0, 0)]) is None


@pytest.mark.parametrize("requests", [1, 2, 4])
def test_a_few_requests_have_no_interval(requests: int) -> None:
    found = total([Share(3 + i, 4) for i in range(requests)])
    assert (found.low, found.high) == (None, None)


def test_no_interval_goes_below_what_can_be() -> None:
    """Tokens a cycle: 1 at least."""
    wild = [Share(5, 1), *(Share(10, 10) for _ in range(5))]
    found = total(wild, least=1.0)
    assert found.low == 1.0


def test_equal_requests_leave_no_doubt() -> None:
    found = total([Share(3, 4)] * 5)
    assert found.low == found.high == found.value


@given(st.lists(PARTS, min_size=5, max_size=30))
def test_the_interval_holds_the_total_and_stays_in_its_bounds(shares: list[Share]) -> None:
    found = total(shares, most=1.0)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


def test_what_differs_between_categories_is_not_chance() -> None:
    mixed = [Share(9, 10), Share(10, 10), Share(1, 10), Share(2, 10)] * 2
    sorted_out = [Share(s.numerator, s.denominator, str(s.numerator > 5)) for s in mixed]
    loose, tight = total(mixed), total(sorted_out)
    assert tight.value == loose.value
    assert width(tight.low, tight.high) < width(loose.low, loose.high)


def test_a_category_of_one_still_counts() -> None:
    shares = [*([Share(9, 10, "a"), Share(10, 10, "a")] * 3), Share(0, 10, "b")]
    found, within = total(shares), total(shares[:-1])
    assert width(found.low, found.high) > width(within.low, within.high)


@pytest.mark.parametrize("lonely", [("c",), ("c", "d")])
def test_a_category_of_one_leaves_the_others_apart(lonely: tuple[str, ...]) -> None:
    shares = [Share(n + i % 2, 10, name) for name, n in (("a", 9), ("b", 1)) for i in range(11)]
    shares += [Share(8, 10, name) for name in lonely]
    apart, pooled = total(shares), total([replace(s, stratum="") for s in shares])
    assert width(apart.low, apart.high) < 0.7 * width(pooled.low, pooled.high)


@pytest.mark.parametrize("requests", [6, 30])
def test_the_interval_holds_the_truth_as_often_as_it_says(requests: int) -> None:
    dice = random.Random(5)
    hits = trials = 0
    for _ in range(400):
        shares = []
        for _ in range(requests):
            drafted = dice.randrange(40, 400)
            rate = min(1.0, max(0.0, dice.gauss(0.6, 0.12)))
            shares.append(Share(rate * drafted, drafted))
        found = total(shares, most=1.0)
        assert found.low is not None
        assert found.high is not None
        trials += 1
        hits += found.low <= 0.6 <= found.high
    assert 0.91 <= hits / trials <= 0.985


def width(low: float | None, high: float | None) -> float:
    assert low is not None
    assert high is not None
    return high - low
