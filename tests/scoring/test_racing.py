"""Races keep the best, and lose the worst soon."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.racing import (
    RaceRules,
    student_quantile,
    student_radius,
    survivors,
)


@pytest.mark.parametrize(
    ("p", "freedom", "quantile"),
    # any table of Student's t
    [
        (0.975, 1, 12.706),
        (0.975, 5, 2.571),
        (0.95, 10, 1.812),
        (0.995, 30, 2.750),
        (0.9999, 8, 6.442),
    ],
)
def test_student_quantiles(p: float, freedom: int, quantile: float) -> None:
    assert student_quantile(p, freedom) == pytest.approx(quantile, abs=2e-3)


def test_two_prompts_bound_nothing() -> None:
    values = np.random.default_rng(0).normal(0.1, 0.05, 60)
    assert student_radius(values, 0.01) > 0
    assert student_radius(values[:2], 0.01) == float("inf")


def test_the_best_is_kept_and_the_hopeless_is_not() -> None:
    rng = np.random.default_rng(1)
    lost = 0
    for _ in range(100):
        skill = np.array([0.70, 0.69, 0.60, 0.40])
        scores = np.clip(
            skill[:, None] + rng.normal(0, 0.15, 60) + rng.normal(0, 0.05, (4, 60)), 0, 1
        )
        kept = tuple(range(4))
        for seen in (20, 40, 60):
            kept = survivors(scores[:, :seen], kept, RaceRules(3, 0.05))
        lost += 0 not in kept
        assert 3 not in kept
    assert lost <= 5


def test_a_race_of_copies_drops_nobody() -> None:
    scores = np.tile(np.random.default_rng(2).random(30), (5, 1))
    assert survivors(scores, (0, 1, 2, 3, 4), RaceRules(2)) == (0, 1, 2, 3, 4)


@given(st.integers(2, 6), st.integers(3, 30), st.integers(0, 99))
def test_the_leader_always_stays(candidates: int, prompts: int, seed: int) -> None:
    scores = np.random.default_rng(seed).random((candidates, prompts))
    alive = tuple(range(candidates))
    kept = survivors(scores, alive, RaceRules(1, 0.5))
    assert int(np.argmax(scores.mean(axis=1))) in kept


def test_impossible_races_are_refused() -> None:
    with pytest.raises(InputError):
        RaceRules(0)
    with pytest.raises(InputError):
        survivors(np.ones((2, 3)), (), RaceRules(1))
