"""Allocations against exact solvers that work otherwise: every mix, and a table over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring import allocation
from cook.scoring.allocation import Allocation, SpanCosts, TypeCost, allocate, fastest, front

Rows = list[tuple[tuple[int, int], ...]]
BPW = (1.56, 2.06, 2.6, 3.06, 3.4, 4.25, 4.5, 5.5, 6.56, 8.5)


def costs_of(most_types: int = 5) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """(bytes, thousandths of a nat) of one span's types; noise makes some damages negative."""
    one = st.tuples(st.integers(0, 40), st.integers(-50, 900))
    return st.lists(one, min_size=1, max_size=most_types).map(tuple)


def spans_of(rows: Sequence[tuple[tuple[int, int], ...]]) -> list[SpanCosts]:
    return [
        SpanCosts(
            str(n), tuple(TypeCost(str(t), b, d / 1000, b * 0.01) for t, (b, d) in enumerate(row))
        )
        for n, row in enumerate(rows)
    ]


def by_table(spans: Sequence[SpanCosts], max_bytes: int) -> float:
    """The least damage in each number of bytes, span after span."""
    best = np.zeros(max_bytes + 1)
    for span in spans:
        wider = np.full(max_bytes + 1, np.inf)
        for cost in span.costs:
            if cost.size_bytes <= max_bytes:
                rest = best[: max_bytes + 1 - cost.size_bytes] + cost.damage
                wider[cost.size_bytes :] = np.minimum(wider[cost.size_bytes :], rest)
        best = wider
    return float(best[max_bytes])


def model(spans: int, seed: int, *, alike: bool = False) -> list[SpanCosts]:
    """Sizes and damages as of a real model: a few spans have most of the bytes, and damage falls
    with bits. ``alike``: layers of one size, where bounds are hardest to close."""
    rng = np.random.default_rng(seed)
    found = []
    for n in range(spans):
        elements = 4e6 if alike else float(rng.choice([1, 1, 4, 4, 16, 400])) * 1e6
        base = 0.01 if alike else rng.lognormal(-5, 1.2)
        damages = [base * exp(-1.2 * bpw) * rng.lognormal(0, 0.15) for bpw in BPW]
        costs = (
            TypeCost(str(bpw), int(elements * bpw / 8), d, elements * bpw * 1e-12)
            for bpw, d in zip(BPW, damages, strict=True)
        )
        found.append(SpanCosts(str(n), tuple(costs)))
    return found


def room(spans: Sequence[SpanCosts], share: float) -> int:
    """Bytes between the smallest mix and the largest."""
    sizes = [[c.size_bytes for c in s.costs] for s in spans]
    least, most = sum(map(min, sizes)), sum(map(max, sizes))
    return least + round(share * (most - least))


def check(spans: Sequence[SpanCosts], found: Allocation) -> None:
    """It is what its choices come to."""
    costs = [s.costs[c] for s, c in zip(spans, found.chosen, strict=True)]
    assert found.size_bytes == sum(c.size_bytes for c in costs)
    assert found.damage == pytest.approx(sum(c.damage for c in costs))
    assert found.seconds == pytest.approx(sum(c.seconds for c in costs))
    assert found.bound <= found.damage


@settings(max_examples=300, deadline=None)
@given(st.lists(costs_of(), min_size=1, max_size=10), st.floats(0, 1))
def test_it_finds_the_least_damage_there_is(rows: Rows, share: float) -> None:
    spans = spans_of(rows)
    max_bytes = room(spans, share)
    found = allocate(spans, max_bytes)
    check(spans, found)
    assert found.size_bytes <= max_bytes
    exact = by_table(spans, max_bytes)
    assert found.damage == pytest.approx(exact, abs=1e-9)
    assert found.bound <= exact + 1e-9
    assert found.gap <= 1e-6


@settings(max_examples=100, deadline=None)
@given(st.lists(costs_of(), min_size=2, max_size=8), st.floats(0, 1))
def test_the_bound_holds_where_states_are_dropped(rows: Rows, share: float) -> None:
    spans = spans_of(rows)
    max_bytes = room(spans, share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation, "MOST_STATES", 2)
        found = allocate(spans, max_bytes)
    check(spans, found)
    exact = by_table(spans, max_bytes)
    assert found.bound <= exact + 1e-9 <= found.damage + 2e-9


@pytest.mark.parametrize("alike", [False, True])
def test_the_gap_of_a_large_model_is_below_half_a_percent(alike: bool) -> None:
    spans = model(300, 7, alike=alike)
    gaps = [allocate(spans, room(spans, n / 21)).gap for n in range(1, 21)]
    assert max(gaps) < 0.005, gaps


@settings(max_examples=100, deadline=None)
@given(st.lists(costs_of(), min_size=1, max_size=7))
def test_every_point_of_the_front_is_the_best_of_its_size(rows: Rows) -> None:
    spans = spans_of(rows)
    points = front(spans)
    for point in points:
        check(spans, point)
        assert point.damage == pytest.approx(by_table(spans, point.size_bytes), abs=1e-9)
    for small, large in pairwise(points):
        assert small.size_bytes < large.size_bytes
        assert small.damage > large.damage
    assert points[0].size_bytes == room(spans, 0)
    assert points[-1].damage == pytest.approx(sum(min(c.damage for c in s.costs) for s in spans))


def test_a_wide_step_of_the_front_is_filled_in() -> None:
    experts = SpanCosts("experts", (TypeCost("q2_K", 1000, 0.5), TypeCost("q8_0", 9000, 0.0)))
    types = TypeCost("q2_K", 100, 0.001), TypeCost("q8_0", 400, 0.0)
    sizes = [p.size_bytes for p in front([experts, *(SpanCosts(str(n), types) for n in range(8))])]
    assert sum(1800 < size < 9800 for size in sizes) >= 8, sizes


@settings(max_examples=100, deadline=None)
@given(st.lists(costs_of(4), min_size=1, max_size=5), st.floats(0, 1), st.floats(0.05, 5))
def test_the_fastest_is_as_fast_as_any(rows: Rows, share: float, verify: float) -> None:
    spans = spans_of(rows)
    max_bytes = room(spans, share)

    def speed(damage: float, seconds: float) -> float:
        return (1 + 3 * (1 - min(sqrt(max(damage, 0)), 1))) / (verify + 4 * seconds)

    found = fastest(spans, max_bytes, speed)
    check(spans, found)
    assert found.size_bytes <= max_bytes
    mixes = [
        (sum(c.damage for c in mix), sum(c.seconds for c in mix))
        for mix in product(*(s.costs for s in spans))
        if sum(c.size_bytes for c in mix) <= max_bytes
    ]
    exact = max(speed(d, s) for d, s in mixes)
    # A mix between two of the convex front may be a little faster still.
    assert speed(found.damage, found.seconds) >= 0.85 * exact
    assert all(d >= found.bound - 1e-9 for d, s in mixes if s <= found.seconds + 1e-12)


def test_the_fastest_of_a_model_leaves_nothing_to_gain_by_one_change() -> None:
    spans = model(40, 3)

    def speed(damage: float, seconds: float) -> float:
        return (1 + 3 * (1 - sqrt(max(damage, 0)))) / (2e-3 + 4 * seconds)

    found = fastest(spans, room(spans, 1), speed)
    best = speed(found.damage, found.seconds)
    gains = []
    for span, chosen in zip(spans, found.chosen, strict=True):
        now = span.costs[chosen]
        for cost in span.costs:
            damage = found.damage + cost.damage - now.damage
            gains.append(speed(damage, found.seconds + cost.seconds - now.seconds) / best - 1)
    assert max(gains) < 0.002


def test_what_cannot_be_is_refused() -> None:
    span = SpanCosts("output", (TypeCost("q8_0", 2048, 0.0),))
    with pytest.raises(InputError, match=r"smallest mix has 2\.00 KiB, and at most 1\.95 KiB"):
        allocate([span], 2000)
    with pytest.raises(InputError, match="output: no type is left"):
        SpanCosts("output", ())
    with pytest.raises(InputError, match="output: q8_0: a cost is not a number"):
        SpanCosts("output", (TypeCost("q8_0", 1, float("nan")),))


def test_the_gap_has_a_meaning_at_no_damage() -> None:
    assert Allocation((0,), 1, 0.0, 0.0, 0.0).gap == 0
    assert Allocation((0,), 1, 0.0, 0.0, -0.1).gap == 1
    assert Allocation((0,), 1, 0.2, 0.0, 0.199).gap == pytest.approx(0.005)


def test_more_room_than_there_are_bytes_is_no_room() -> None:
    span = SpanCosts("output", (TypeCost("q4_K", 1024, 1.0), TypeCost("q8_0", 2048, 0.0)))
    found = allocate([span], 10**21)
    assert (found.chosen, found.bound, found.gap) == ((1,), 0.0, 0.0)


def test_what_rounding_leaves_is_no_gap() -> None:
    spans = [
        SpanCosts(f"s{n}", (TypeCost("q2_K", 10 + n, v), TypeCost("q8_0", 40 + n, 0.0)))
        for n, v in enumerate((0.1, 0.2, 0.3))
    ]
    for max_bytes in range(33, 124):
        assert allocate(spans, max_bytes).gap < 1e-9
