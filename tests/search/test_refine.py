"""Whole mixes: what is expected of them, and how the leader is changed."""

from __future__ import annotations

import numpy as np
import pytest

from cook.search.evaluate import Replies
from cook.search.ledger import Budget, Ledger
from cook.search.refine import Refinement, expected_lengths
from cook.search.sensitivity import Sensitivity
from cook.search.space import Mix
from tests.search.spaces import PROMPTS, ROUNDS, Law, elements, space

WEIGHTS = (1.0, 0.5, 0.2, 3.0, 0.5, 4.0, 2.0)


def drawn(seed: int, noise: float) -> tuple[dict[Mix, Replies], Law]:
    """Mixes drawn by lot, with what chance adds to each prompt."""
    model = space()
    law = Law(model, WEIGHTS, noise=noise)
    rng = np.random.default_rng(seed)
    mixes = [model.largest]
    mixes += [tuple(str(rng.choice(types)) for types in model.types) for _ in range(30)]
    mixes = list(dict.fromkeys(mixes))
    return dict(zip(mixes, law(mixes, PROMPTS), strict=True)), law


def true_length(law: Law, mix: Mix) -> float:
    return float(1 / (1 - 0.8 * np.exp(-law.damage(mix))))


def test_what_is_expected_is_nearer_the_truth_than_what_was_counted() -> None:
    known, law = drawn(1, noise=0.05)
    expected = expected_lengths(known, law.space.largest)
    truth = np.array([true_length(law, mix) for mix in known])
    counted = np.array([replies.acceptance_length for replies in known.values()])
    told = np.array([expected[mix] for mix in known])
    relative = [np.std(np.log(x / truth)) for x in (told, counted)]
    assert relative[0] < 0.7 * relative[1]


def test_without_chance_what_was_counted_stands() -> None:
    known, law = drawn(2, noise=0.0)
    expected = expected_lengths(known, law.space.largest)
    for mix, replies in known.items():
        assert expected[mix] == pytest.approx(replies.acceptance_length, rel=1e-3)


def test_few_mixes_are_taken_as_counted() -> None:
    known, law = drawn(3, noise=0.05)
    few = dict(list(known.items())[:4])
    expected = expected_lengths(few, law.space.largest)
    assert expected == {mix: replies.acceptance_length for mix, replies in few.items()}


def test_the_leader_is_never_larger_than_asked_and_within_reach_of_the_best() -> None:
    model = space()
    law = Law(model, WEIGHTS, noise=0.01)
    limit = int(elements(model) * 4.2 / 8) + model.fixed_bytes
    ledger = Ledger(law, ROUNDS, Budget(evaluations=40))
    sensitivity = Sensitivity.of(model, ledger)
    sensitivity.settle(limit, until=20)
    found = Refinement(sensitivity, limit, np.random.default_rng(0)).run([])
    assert model.bytes_of(found) <= limit
    assert ledger.spent <= 41
    least, _ = sensitivity.allocated(limit)
    assert true_length(law, found) >= 0.99 * true_length(law, least)


def test_a_mix_made_by_hand_is_looked_at_and_one_too_large_is_not() -> None:
    model = space()
    law = Law(model, WEIGHTS)
    limit = int(elements(model) * 4.2 / 8) + model.fixed_bytes
    ledger = Ledger(law, ROUNDS, Budget(evaluations=40))
    sensitivity = Sensitivity.of(model, ledger)
    by_hand = tuple(types[0] for types in model.types)
    Refinement(sensitivity, limit, np.random.default_rng(0)).run([by_hand, model.largest])
    assert by_hand in ledger.known
    assert ledger.entries[model.largest].purpose == "reference"
