"""Speed from typed numbers: against brute force and the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve
from cook.scoring.iid import alpha_of, best_length, iid_row, tokens_per_cycle
from cook.scoring.simulate import Profile

FLAT = BatchCurve((0,), (1,), ((0.1,),))
REAL = BatchCurve((0,), (1, 2, 5), ((0.146, 0.170, 0.220),), typed=True)


@given(st.floats(0.01, 0.99), st.integers(1, 30))
def test_leviathans_formula(alpha: float, n_max: int) -> None:
    expected = (1 - alpha ** (n_max + 1)) / (1 - alpha)
    assert tokens_per_cycle(alpha, n_max) == pytest.approx(expected)
    ratio = (expected - 1) / n_max
    assert alpha_of(ratio, n_max) == pytest.approx(alpha, abs=1e-6)


@given(st.floats(0.3, 0.95), st.floats(0.01, 0.4))
def test_the_closed_form_is_the_brute_force_optimum(alpha: float, share: float) -> None:
    found = best_length(alpha, 1.0, share)

    def speed(g: float) -> float:
        return float((1 - alpha ** (g + 1)) / (g * share + 1.0))

    grid = [k / 50 for k in range(50 * 200)]
    assert found == pytest.approx(max(grid, key=speed) if found > 0 else found, abs=0.02)


def test_a_cycle_of_either_engine() -> None:
    """verify(3) interpolated, two single decodes; mainline evaluates the batch with the draft."""
    ik = iid_row(0.62, 2, REAL, 0.012, Profile.IK_2026_08)
    mainline = iid_row(0.62, 2, REAL, 0.012, Profile.MAINLINE_2026_10)
    verify_ms = 170 + (220 - 170) / 3
    assert ik.cycle_ms == pytest.approx(verify_ms + 24)
    assert mainline.cycle_ms == pytest.approx(verify_ms + 36)
    length = 1 + 0.62 + 0.62**2
    assert ik.decode_tokens_per_s == pytest.approx(1000 * length / ik.cycle_ms)
    assert ik.speedup == pytest.approx(length * 146 / ik.cycle_ms)


@given(st.integers(1, 16), st.floats(0.001, 0.05))
def test_break_even_is_where_the_speedup_is_one(n_max: int, draft_s: float) -> None:
    even = iid_row(0.5, n_max, REAL, draft_s, Profile.IK_2026_08).break_even
    if even <= 1:
        row = iid_row(alpha_of(even, n_max), n_max, REAL, draft_s, Profile.IK_2026_08)
        assert row.speedup == pytest.approx(1.0, abs=1e-6)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(InputError):
        alpha_of(1.2, 4)
    with pytest.raises(InputError):
        iid_row(-0.1, 4, FLAT, 0.01, Profile.IK_2026_08)
    with pytest.raises(InputError, match="faster than its target"):
        best_length(0.5, 0.1, 0.2)
