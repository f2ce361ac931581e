"""Decode times by type: found again from timed mixes, and the error told on others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cook.errors import InputError
from cook.formats.quant_types import by_name
from cook.scoring.fits import TimedMix, decode_s, fit_decode, reading

SLOPES = {"q8_0": 1.0e-10, "q4_K": 1.4e-10, "iq2_xs": 2.4e-10, "q2_K routed": 1.9e-10}
FIXED = 2e-3


def mixes(count: int, seed: int, noise: float = 0.0) -> list[TimedMix]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        share = rng.dirichlet(np.ones(len(SLOPES)))
        total = rng.uniform(2e7, 8e7)
        read = {kind: float(s * total) for kind, s in zip(SLOPES, share, strict=True)}
        seconds = FIXED + sum(SLOPES[kind] * b for kind, b in read.items())
        found.append(TimedMix(read, seconds * (1 + rng.normal(0, noise))))
    return found


def error_of_bytes_alone(fitted: Sequence[TimedMix], held_out: Sequence[TimedMix]) -> float:
    def total(mix: TimedMix) -> float:
        return sum(mix.read_bytes.values())

    rows = np.array([[1.0, total(mix)] for mix in fitted])
    fixed, slope = np.linalg.lstsq(rows, np.array([m.seconds for m in fitted]), rcond=None)[0]
    return float(np.mean([abs((fixed + slope * total(m)) / m.seconds - 1) for m in held_out]))


def test_slopes_are_found_again() -> None:
    law = fit_decode(mixes(24, 1), mixes(10, 2))
    assert law.fixed_s == pytest.approx(FIXED, rel=0.02)
    for kind, slope in SLOPES.items():
        assert law.s_per_byte[kind] == pytest.approx(slope, rel=0.02)
    assert law.largest_error is not None
    assert law.largest_error < 0.005
    assert (law.fitted, law.held_out) == (24, 10)


def test_types_predict_better_than_bytes_alone() -> None:
    fitted, held_out = mixes(8, 3, 0.005), mixes(12, 4, 0.005)
    law = fit_decode(fitted, held_out)
    assert law.error is not None
    assert law.error < 0.6 * error_of_bytes_alone(fitted, held_out)


def test_few_mixes_say_little_and_that_is_not_overdone() -> None:
    law = fit_decode(mixes(3, 5, 0.01), mixes(20, 6))
    assert law.error is not None
    assert law.error < 0.15
    assert min(law.s_per_byte.values()) >= 0
    assert law.fixed_s >= 0


def test_a_kind_that_was_never_timed_costs_what_others_do() -> None:
    law = fit_decode(mixes(12, 7), ())
    assert law.error is law.largest_error is None
    more = decode_s(law, {"q3_K": 1e7}) - decode_s(law, {})
    assert more == pytest.approx(1e7 * law.other_s_per_byte)
    assert 1e-10 < law.other_s_per_byte < 2.4e-10


def test_routed_experts_are_read_apart() -> None:
    assert reading("q2_K", routed=True) in SLOPES
    assert reading("q4_K", routed=False) in SLOPES


def test_what_says_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="2 timed mixes"):
        fit_decode(mixes(2, 1), ())
    with pytest.raises(InputError, match="not positive"):
        fit_decode([*mixes(3, 1), TimedMix({"q8_0": 1.0}, 0.0)], ())


def test_types_of_few_bits_may_be_the_slowest() -> None:
    """Where computing bounds: of so many weights, in whatever types."""
    weights, slow = 5e6, {"iq1_s": 3.0e-11, "iq3_s": 6.0e-11, "q4_K": 1.2e-11, "q8_0": 2.0e-11}
    rng = np.random.default_rng(8)

    def drawn(count: int) -> list[TimedMix]:
        found = []
        for _ in range(count):
            share = dict(zip(slow, rng.dirichlet(np.ones(len(slow))), strict=True))
            read = {kind: float(s * weights * by_name(kind).bpw / 8) for kind, s in share.items()}
            seconds = 3e-5 + sum(slow[kind] * s * weights for kind, s in share.items())
            found.append(TimedMix(read, float(seconds * (1 + rng.normal(0, 0.02)))))
        return found

    fitted, held_out = drawn(10), drawn(12)
    law = fit_decode(fitted, held_out)
    assert law.error is not None
    typical = float(np.median([mix.seconds for mix in fitted]))
    assert law.error < 0.5 * np.mean([abs(typical / mix.seconds - 1) for mix in held_out])
