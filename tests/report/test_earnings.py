"""What spans earn: ordered by nats a byte, against the best use of a byte elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.search_record import Effect, SearchedSpan, TypeEffect
from cook.report.earnings import earnings
from tests.searches import search_record


def span(name: str, chosen: str, *klds: float) -> SearchedSpan:
    """Types a, b, c ... of 100, 200, 300 ... bytes."""
    types = tuple(
        TypeEffect("abc"[n], 100 * (n + 1), "replay", kld=Effect(kld)) for n, kld in enumerate(klds)
    )
    return SearchedSpan(name, "attention", None, None, (name,), 800, "c", chosen, types)


def test_a_span_is_held_against_the_best_use_of_a_byte() -> None:
    few = span("few", "b", 0.5, 0.2, 0.1)  # 3 thousandths a byte kept, 1 gained by more
    many = span("many", "a", 0.4, 0.2, 0.1)  # 2 gained by more: the price
    found = earnings(replace(search_record(), spans=(many, few)))
    assert [e.span.name for e in found] == ["few", "many"]
    first, last = found
    assert first.kld_per_byte == pytest.approx(1.5 * 0.002)
    assert first.times_price == pytest.approx(1.5)
    assert first.saved_bytes == 100
    assert first.kld_more == pytest.approx(0.3)
    assert first.share == pytest.approx(2 / 3)
    assert last.smaller is None
    assert last.times_price is None


def test_a_span_whose_bits_would_be_better_elsewhere_says_so() -> None:
    few, many = span("few", "b", 0.11, 0.1, 0.1), span("many", "a", 0.4, 0.2, 0.1)
    found = earnings(replace(search_record(), spans=(few, many)))
    assert found[0].times_price == pytest.approx(0.05)
    none = replace(search_record(), spans=(span("few", "b", 0.1, 0.1, 0.1), many))
    assert earnings(none)[0].times_price == 0


def test_what_was_split_earns_nothing_itself() -> None:
    names = {e.span.name for e in earnings(search_record())}
    assert "attention" not in names
    assert {"attention 0-1", "attention 2-3"} <= names


def test_costs_that_were_not_measured_are_passed_over() -> None:
    one = span("few", "b", 0.5, 0.2, 0.1)
    unknown = tuple(replace(t, kld=None) for t in one.types)
    bare = earnings(replace(search_record(), spans=(replace(one, types=unknown),)))
    assert bare[0].smaller is None
    assert bare[0].kld_more is None
    assert bare[0].times_price is None
