"""Costs of spans: measured where the best mix needs them, and split where that pays."""

from __future__ import annotations

import itertools

import pytest

from cook.search.evaluate import Budget, Ledger
from cook.search.sensitivity import Sensitivity, kld
from tests.search.spaces import PROMPTS, TYPES, Law, elements, space

WEIGHTS = (40.0, 8.0, 4.0, 40.0, 8.0, 90.0, 60.0)


def measured(evaluations: float = 200) -> Sensitivity:
    model = space()
    return Sensitivity.of(model, Ledger(Law(model, WEIGHTS), PROMPTS, Budget(evaluations)))


def bytes_at(bpw: float) -> int:
    return int(elements(space()) * bpw / 8) + space().fixed_bytes


def test_what_was_not_measured_follows_the_curve_of_its_span() -> None:
    one = measured()
    attention = one.space.spans()[0]
    guess = one.damage(attention, "q2_K", kld) / one.damage(attention, "q4_K", kld)
    assert guess == pytest.approx(4 ** (4.5 - 2.625), rel=1e-6)
    one.measure([(attention, "q4_K")])
    law = Law(one.space, WEIGHTS)
    changed = one.space.changed(one.reference, attention, "q2_K")
    true = law.damage(changed) - law.damage(one.reference)
    assert one.damage(attention, "q2_K", kld) == pytest.approx(true, rel=0.02)
    assert one.damage(attention, "q8_0", kld) == 0


def test_the_chosen_types_are_measured_and_no_others() -> None:
    one = measured()
    one.settle(bytes_at(4.0), until=0)
    mix, allocation = one.allocated(bytes_at(4.0))
    for span in one.spans:
        chosen = mix[span.ties[0]]
        assert chosen == "q8_0" or one.measured(span, chosen) is not None
    assert one.space.bytes_of(mix) <= bytes_at(4.0)
    assert allocation.gap < 0.005
    assert len(one.ledger.entries) <= 1 + len(one.spans) * (len(TYPES) - 1)


def test_a_span_is_split_where_that_pays_and_stays_where_nothing_is_gained() -> None:
    one = measured()
    limit = bytes_at(4.0)
    one.settle(limit, until=0)
    _, before = one.allocated(limit)
    one.split(limit, until=0)
    _, after = one.allocated(limit)
    coarse = {span.name for span in one.lineage()} - {span.name for span in one.spans}
    assert "routed_experts" in coarse
    assert after.damage < 0.98 * before.damage
    room = one.space.bytes_of(one.space.largest)
    free = measured()
    free.settle(room, until=0)
    free.split(room, until=0)
    assert free.spans == free.lineage() == free.space.spans()


def test_the_mix_found_is_nearly_the_best_of_all() -> None:
    one = measured()
    law = Law(one.space, WEIGHTS)
    for bpw in (3.2, 4.0, 5.5):
        limit = bytes_at(bpw)
        one.settle(limit, until=0)
        one.split(limit, until=0)
        found, _ = one.allocated(limit)
        fitting = (m for m in itertools.product(*one.space.types) if one.space.bytes_of(m) <= limit)
        best = min(law.damage(m) for m in fitting)
        assert law.damage(found) <= 1.1 * best


def test_measuring_ends_with_the_budget() -> None:
    one = measured(evaluations=3)
    one.settle(bytes_at(4.0), until=0)
    one.split(bytes_at(4.0), until=0)
    assert len(one.ledger.entries) <= 3
    mix, _ = one.allocated(bytes_at(4.0))
    assert one.space.bytes_of(mix) <= bytes_at(4.0)
