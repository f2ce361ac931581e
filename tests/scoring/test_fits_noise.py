"""The noise floor: drift of the machine is not noise, what is left is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.fits import noise_of


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
