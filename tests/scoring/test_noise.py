"""The noise floor: drift of the machine is not noise, what is left is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.noise import noise_of
from cook.scoring.statistics import ErrorTerm, Measured, standings


def test_drift_that_all_candidates_share_is_no_noise() -> None:
    speeds = np.array([[1.0, 1.2, 0.9], [2.0, 2.2, 1.9], [0.5, 0.7, 0.4]])
    assert noise_of(speeds).sd == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.002, 0.05))
def test_the_spread_is_found(seed: int, sd: float) -> None:
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, 0.05, size=8)
    found = noise_of(rng.normal(0, sd, size=(30, 8)) + drift + np.arange(30)[:, None])
    assert 0.75 * sd < found.sd < 1.25 * sd
    assert found.freedom == 29 * 7


def test_one_pass_says_nothing_about_noise() -> None:
    with pytest.raises(InputError, match="two passes"):
        noise_of(np.zeros((3, 1)))


def test_copies_measured_apart_are_seldom_told_apart() -> None:
    """The figure for which the passes exist: a false winner in at most 5 % of contests."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(60, 190, size=40).astype(float)
    seconds = tokens / 300 * rng.lognormal(0, 0.2, size=40)
    false = 0
    contests = 400
    for _ in range(contests):
        # two copies and no draft, three passes, 1.5 % of noise a pass and 4 % of drift
        passes = rng.normal(0, 0.015, size=(3, 3)) + rng.normal(0, 0.04, size=3)
        passes[2] -= 0.08
        noise = noise_of(passes)
        slow = np.exp(-np.median(passes, axis=1))
        measured = Measured(
            ("one", "two", "bare"),
            np.repeat(tokens[None], 3, axis=0),
            seconds * slow[:, None],
            np.zeros(40, np.int64),
            np.ones(40),
        )
        timing = ErrorTerm(noise.of_median, (0, 1, 2))
        found = standings(measured, rng, resamples=300, errors=[timing])
        false += not {"one", "two"} <= set(found.ties)
    assert false <= 0.05 * contests
