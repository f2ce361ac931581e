"""What KLD costs in acceptance length: found again where the law holds, and its error told."""

from __future__ import annotations

import numpy as np
import pytest

from cook.errors import InputError
from cook.record.search_record import ReplayedMix
from cook.scoring.fits import WholeMix, fit_law, predicted_length
from cook.scoring.iid import tokens_per_cycle

N_MAX = 4
CYCLES = 100_000


def replayed(alpha: float, kld: float) -> ReplayedMix:
    accepted = round((tokens_per_cycle(alpha, N_MAX) - 1) * CYCLES)
    return ReplayedMix(40, N_MAX * CYCLES, accepted, CYCLES, CYCLES + accepted, kld)


def mix(kld: float, kappa: float, power: float, noise: float = 0.0) -> WholeMix:
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
    assert law.largest_error is not None
    assert law.largest_error < 1e-3
    assert law.additivity == pytest.approx(0.9)
    assert (law.fitted, law.held_out) == (3, 2)
    assert predicted_length(law, 0.0) == pytest.approx(REFERENCE.acceptance_length, rel=1e-4)


def test_the_error_is_of_mixes_that_decide_nothing() -> None:
    rng = np.random.default_rng(5)
    mixes = [mix(kld, 0.9, 0.5, rng.normal(0, 0.02)) for kld in rng.uniform(0.01, 0.2, 12)]
    law = fit_law(REFERENCE, mixes[:6], mixes[6:], N_MAX)
    other = fit_law(REFERENCE, mixes[:6], mixes[6:9], N_MAX)
    alone = fit_law(REFERENCE, mixes[:6], (), N_MAX)
    assert law.kappa == other.kappa == alone.kappa
    assert alone.error is alone.largest_error is None
    assert law.error is not None
    assert law.largest_error is not None
    assert 0 < law.error <= law.largest_error < 0.15


def test_a_prediction_stays_among_the_lengths_there_are() -> None:
    law = fit_law(REFERENCE, [mix(kld, 0.9, 0.5) for kld in KLDS], (), N_MAX)
    assert predicted_length(law, -0.5) == predicted_length(law, 0.0)
    assert predicted_length(law, 100.0) == 1.0


def test_what_says_too_little_is_refused() -> None:
    few = [mix(0.1, 0.9, 0.5), mix(0.2, 0.9, 0.5), WholeMix(0.0, REFERENCE)]
    with pytest.raises(InputError, match="2 replayed mixes"):
        fit_law(REFERENCE, few, (), N_MAX)
    nothing = WholeMix(0.1, ReplayedMix(4, 0, 0, 0, 0, 0.4))
    with pytest.raises(InputError, match="drafted nothing"):
        fit_law(REFERENCE, [nothing], (), N_MAX)
