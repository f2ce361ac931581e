"""From KLD to acceptance length: one constant, fitted to whole mixes that were replayed.

KLD adds over spans and acceptance does not (docs/internals/mixes.md), so mixes are
allocated by KLD, and this says what that costs in tokens a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cook.errors import InputError
from cook.record.search_record import AcceptanceLaw, ReplayedMix
from cook.scoring.iid import alpha_of, tokens_per_cycle

FEWEST_MIXES = 3
"""Whole mixes below which nothing is fitted."""
POWERS = (0.5, 1.0)


@dataclass(frozen=True)
class WholeMix:
    """A mix that was replayed whole. ``summed_kld`` (nats): what its spans add alone, summed."""

    summed_kld: float
    replayed: ReplayedMix


def fit_law(
    reference: ReplayedMix, fitted: Sequence[WholeMix], held_out: Sequence[WholeMix], n_max: int
) -> AcceptanceLaw:
    """kappa and its power from ``fitted``; its error on ``held_out``, which decide nothing.

    All are replayed on the same prompts in drafts of ``n_max`` tokens. InputError where fewer than
    :data:`FEWEST_MIXES` of ``fitted`` add any KLD, or one drafted nothing.
    """
    base = _alpha(reference, n_max)
    points = [(m.summed_kld, base - _alpha(m.replayed, n_max)) for m in fitted if m.summed_kld > 0]
    if len(points) < FEWEST_MIXES:
        raise InputError(
            f"{len(points)} replayed mixes with more KLD than the reference's say too little of "
            f"what KLD costs in acceptance: it takes {FEWEST_MIXES}",
            hint="allow more evaluations (`--budget`)",
        )
    power = min(POWERS, key=lambda p: _left_out_error(points, p))
    law = AcceptanceLaw(
        kappa=_kappa(points, power),
        power=power,
        reference_alpha=base,
        n_max=n_max,
        fitted=len(points),
        held_out=len(held_out),
        error=None,
        largest_error=None,
        additivity=_additivity(reference, [*fitted, *held_out]),
    )
    if not held_out:
        return law
    off = [abs(predicted_length(law, m.summed_kld) / _length(m.replayed) - 1) for m in held_out]
    return replace(law, error=sum(off) / len(off), largest_error=max(off))


def predicted_length(law: AcceptanceLaw, summed_kld: float) -> float:
    """Tokens a cycle of a mix whose spans add ``summed_kld`` nats; less than none adds none."""
    lost = law.kappa * max(summed_kld, 0.0) ** law.power
    return tokens_per_cycle(min(max(law.reference_alpha - lost, 0.0), 1.0), law.n_max)


def _kappa(points: Sequence[tuple[float, float]], power: float) -> float:
    """Least squares through the origin, and no less than 0: KLD never helps."""
    over = sum(kld**power * lost for kld, lost in points)
    return float(max(over / sum(kld ** (2 * power) for kld, _ in points), 0.0))


def _left_out_error(points: Sequence[tuple[float, float]], power: float) -> float:
    """Squared error of each point by the fit of all others."""
    return math.fsum(
        (lost - _kappa([*points[:n], *points[n + 1 :]], power) * kld**power) ** 2
        for n, (kld, lost) in enumerate(points)
    )


def _additivity(reference: ReplayedMix, mixes: Sequence[WholeMix]) -> float | None:
    """KLD that whole mixes add over the sum of what their spans add; None where it is not known."""
    pairs = [
        (m.replayed.mean_kld - reference.mean_kld, m.summed_kld)
        for m in mixes
        if m.replayed.mean_kld is not None and reference.mean_kld is not None
    ]
    summed = sum(alone for _, alone in pairs)
    return sum(whole for whole, _ in pairs) / summed if summed > 0 else None


def _length(replayed: ReplayedMix) -> float:
    length = replayed.acceptance_length
    if length is None:
        raise InputError("a mix drafted nothing on these prompts: it has no acceptance length")
    return length


def _alpha(replayed: ReplayedMix, n_max: int) -> float:
    return alpha_of((_length(replayed) - 1) / n_max, n_max)
