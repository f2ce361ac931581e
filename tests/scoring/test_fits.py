"""What is fitted to mixes is found again where the law holds, and its error is of other mixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.formats.quant_types import by_name
from cook.record.search_record import ReplayedMix
from cook.scoring.fits import (
    TimedMix,
    WholeMix,
    decode_s,
    fit_decode,
    fit_law,
    noise_of,
    predicted_length,
    rank_correlation,
    reading,
)
from cook.scoring.iid import tokens_per_cycle

N_MAX, CYCLES = 4, 100_000


def replayed(alpha: float, kld: float) -> ReplayedMix:
    accepted = round((tokens_per_cycle(alpha, N_MAX) - 1) * CYCLES)
    return ReplayedMix(40, N_MAX * CYCLES, accepted, CYCLES, CYCLES + accepted, kld)


def mix(kld: float, kappa: float = 0.9, power: float = 0.5, noise: float = 0.0) -> WholeMix:
    return WholeMix(kld, replayed(0.8 - kappa * kld**power + noise, 0.3 + 0.9 * kld))


REFERENCE = replayed(0.8, 0.3)
KLDS = (0.01, 0.04, 0.09, 0.16, 0.02)


@pytest.mark.parametrize(("kappa", "power"), [(0.9, 0.5), (0.4, 0.5), (1.5, 1.0)])
def test_the_law_is_found_again(kappa: float, power: float) -> None:
    mixes = [mix(kld, kappa, power) for kld in KLDS]
    law = fit_law(REFERENCE, mixes[:3], mixes[3:], N_MAX)
    assert law.power == power
    assert law.kappa == pytest.approx(kappa, rel=1e-3)
    assert law.reference_alpha == pytest.approx(0.8, abs=1e-4)
    assert (law.largest_error or 1.0) < 1e-3
    assert law.additivity == pytest.approx(0.9)
    assert (law.fitted, law.held_out) == (3, 2)
    assert predicted_length(law, 0.0) == pytest.approx(REFERENCE.acceptance_length, rel=1e-4)
    assert predicted_length(law, -0.5) == predicted_length(law, 0.0)
    assert predicted_length(law, 100.0) == 1.0


def test_the_error_is_of_mixes_that_decide_nothing() -> None:
    rng = np.random.default_rng(5)
    mixes = [mix(kld, noise=rng.normal(0, 0.02)) for kld in rng.uniform(0.01, 0.2, 12)]
    law, other, alone = (
        fit_law(REFERENCE, mixes[:6], held_out, N_MAX) for held_out in (mixes[6:], mixes[6:9], ())
    )
    assert law.kappa == other.kappa == alone.kappa
    assert alone.error is alone.largest_error is None
    assert 0 < (law.error or 0) <= (law.largest_error or 0) < 0.15


def test_too_few_mixes_are_refused() -> None:
    few = [mix(0.1), mix(0.2), WholeMix(0.0, REFERENCE)]
    with pytest.raises(InputError, match="2 replayed mixes"):
        fit_law(REFERENCE, few, (), N_MAX)
    nothing = WholeMix(0.1, ReplayedMix(4, 0, 0, 0, 0, 0.4))
    with pytest.raises(InputError, match="drafted nothing"):
        fit_law(REFERENCE, [nothing], (), N_MAX)
    with pytest.raises(InputError, match="2 timed mixes"):
        fit_decode(mixes(2, 1), ())
    with pytest.raises(InputError, match="not positive"):
        fit_decode([*mixes(3, 1), TimedMix({"q8_0": 1.0}, 0.0)], ())


SLOPES = {"q8_0": 1.0e-10, "q4_K": 1.4e-10, "iq2_xs": 2.4e-10, "q2_K routed": 1.9e-10}
FIXED = 2e-3


def mixes(count: int, seed: int, noise: float = 0.0) -> list[TimedMix]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        share, total = rng.dirichlet(np.ones(len(SLOPES))), rng.uniform(2e7, 8e7)
        read = {kind: float(s * total) for kind, s in zip(SLOPES, share, strict=True)}
        seconds = FIXED + sum(SLOPES[kind] * b for kind, b in read.items())
        found.append(TimedMix(read, seconds * (1 + rng.normal(0, noise))))
    return found


def test_slopes_are_found_again() -> None:
    law = fit_decode(mixes(24, 1), mixes(10, 2))
    assert law.fixed_s == pytest.approx(FIXED, rel=0.02)
    assert law.s_per_byte == pytest.approx(SLOPES, rel=0.02)
    assert (law.largest_error or 1.0) < 0.005
    assert (law.fitted, law.held_out) == (24, 10)


def test_types_predict_better_than_bytes_alone() -> None:
    fitted, held_out = mixes(8, 3, 0.005), mixes(12, 4, 0.005)

    def total(mix: TimedMix) -> float:
        return sum(mix.read_bytes.values())

    rows = np.array([[1.0, total(mix)] for mix in fitted])
    fixed, slope = np.linalg.lstsq(rows, np.array([m.seconds for m in fitted]), rcond=None)[0]
    alone = np.mean([abs((fixed + slope * total(m)) / m.seconds - 1) for m in held_out])
    assert (fit_decode(fitted, held_out).error or 1.0) < 0.6 * alone


def test_few_mixes_say_little_and_that_is_not_overdone() -> None:
    law = fit_decode(mixes(3, 5, 0.01), mixes(20, 6))
    assert (law.error or 1.0) < 0.15
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


def test_types_of_few_bits_may_be_the_slowest() -> None:
    """Where computing bounds: of so many weights, in whatever types."""
    weights, slow = 5e6, {"iq1_s": 3.0e-11, "iq3_s": 6.0e-11, "q4_K": 1.2e-11, "q8_0": 2.0e-11}
    rng, found = np.random.default_rng(8), []
    for _ in range(22):
        share = dict(zip(slow, rng.dirichlet(np.ones(len(slow))), strict=True))
        read = {kind: float(s * weights * by_name(kind).bpw / 8) for kind, s in share.items()}
        seconds = 3e-5 + sum(slow[kind] * s * weights for kind, s in share.items())
        found.append(TimedMix(read, float(seconds * (1 + rng.normal(0, 0.02)))))
    fitted, held_out = found[:10], found[10:]
    law = fit_decode(fitted, held_out)
    typical = float(np.median([mix.seconds for mix in fitted]))
    alike = np.mean([abs(typical / mix.seconds - 1) for mix in held_out])
    assert (law.error or 1.0) < 0.5 * alike


def test_drift_that_all_candidates_share_is_no_noise() -> None:
    speeds = np.array([[1.0, 1.2, 0.9], [2.0, 2.2, 1.9], [0.5, 0.7, 0.4]])
    assert noise_of(speeds).sd == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(InputError, match="two passes"):
        noise_of(np.zeros((3, 1)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.002, 0.05))
def test_the_spread_is_found(seed: int, sd: float) -> None:
    rng = np.random.default_rng(seed)
    drift = rng.normal(0, 0.05, size=8)
    found = noise_of(rng.normal(0, sd, size=(30, 8)) + drift + np.arange(30)[:, None])
    assert 0.75 * sd < found.sd < 1.25 * sd
    assert found.freedom == 29 * 7


def test_known_orders() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 1000, 1001]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # Spearman 1904, with one tie: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=20))
def test_an_order_does_not_depend_on_the_scale(pairs: list[tuple[int, int]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found = rank_correlation(one, other)
    if found is None:
        assert len(set(one)) == 1 or len(set(other)) == 1
    else:
        assert -1 - 1e-9 <= found <= 1 + 1e-9
        assert rank_correlation([a**3 + 5 for a in one], other) == pytest.approx(found)
        assert rank_correlation(other, one) == pytest.approx(found)
