"""What a search fits to the mixes that it replayed and timed, and how far such fits are off.

*Acceptance length from KLD*: KLD adds over spans and acceptance does not
(docs/internals/mixes.md), so mixes are allocated by KLD, and one constant says what that costs in
tokens a cycle.

*Seconds of a draft's decode* from its bytes and types. Bytes alone mislead: types differ in what a
byte costs to read, routed experts are read in part, and something is spent whatever the size. What
nothing was timed of is by its bytes where memory bounds, and by its weights where computing does:
on a processor a type of few bits may be slower than one of many (docs/internals/mixes.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.formats.quant_types import by_name
from cook.record.search_record import AcceptanceLaw, DecodeLaw, ReplayedMix
from cook.scoring.compare import student_quantile
from cook.scoring.iid import alpha_of, tokens_per_cycle

FEWEST_MIXES = 3
"""Replayed, or timed, below which nothing is fitted."""
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
    # Of the powers the one of least squared errors, of each point by the fit of all others.
    power = min(
        POWERS,
        key=lambda p: math.fsum(
            (lost - _kappa([*points[:n], *points[n + 1 :]], p) * kld**p) ** 2
            for n, (kld, lost) in enumerate(points)
        ),
    )
    # KLD that whole mixes add over the sum of what their spans add.
    known = [
        (m.replayed.mean_kld - reference.mean_kld, m.summed_kld)
        for m in (*fitted, *held_out)
        if m.replayed.mean_kld is not None and reference.mean_kld is not None
    ]
    summed = sum(alone for _, alone in known)
    law = AcceptanceLaw(
        kappa=_kappa(points, power),
        power=power,
        reference_alpha=base,
        n_max=n_max,
        fitted=len(points),
        held_out=len(held_out),
        error=None,
        largest_error=None,
        additivity=sum(whole for whole, _ in known) / summed if summed > 0 else None,
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


def _length(replayed: ReplayedMix) -> float:
    length = replayed.acceptance_length
    if length is None:
        raise InputError("a mix drafted nothing on these prompts: it has no acceptance length")
    return length


def _alpha(replayed: ReplayedMix, n_max: int) -> float:
    return alpha_of((_length(replayed) - 1) / n_max, n_max)


ROUTED = " routed"
PULLS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""How much a slope that is off the common one by all of it costs, in squared relative errors of a
timed mix. Of these, and of slopes by bytes or by weights, what predicts each mix best from the
others is taken."""


@dataclass(frozen=True)
class TimedMix:
    """``seconds`` of one decode, which reads ``read_bytes`` of each kind (:func:`reading`)."""

    read_bytes: Mapping[str, float]
    seconds: float


def reading(type_name: str, *, routed: bool) -> str:
    """The kind that bytes are read as: by their type, and apart where a router chooses them."""
    return type_name + ROUTED if routed else type_name


def fit_decode(fitted: Sequence[TimedMix], held_out: Sequence[TimedMix]) -> DecodeLaw:
    """The law of ``fitted``; its error on ``held_out``, which decide nothing.

    InputError where fewer than :data:`FEWEST_MIXES` were timed, or a time is not positive.
    """
    if len(fitted) < FEWEST_MIXES:
        raise InputError(
            f"{len(fitted)} timed mixes say too little of what types cost: it takes {FEWEST_MIXES}",
            hint="allow more evaluations (`--budget`)",
        )
    if any(not mix.seconds > 0 for mix in (*fitted, *held_out)):
        raise InputError("a measured time is not positive")

    def left_out_error(prior: tuple[bool, float]) -> float:
        """Squared relative error of each mix by the fit of all others."""
        laws = (_fit([*fitted[:n], *fitted[n + 1 :]], *prior) for n in range(len(fitted)))
        return sum(
            (decode_s(law, mix.read_bytes) / mix.seconds - 1) ** 2
            for law, mix in zip(laws, fitted, strict=True)
        )

    law = _fit(fitted, *min(product((False, True), PULLS), key=left_out_error))
    if not held_out:
        return law
    off = [abs(decode_s(law, mix.read_bytes) / mix.seconds - 1) for mix in held_out]
    return replace(law, held_out=len(off), error=sum(off) / len(off), largest_error=max(off))


def decode_s(law: DecodeLaw, read_bytes: Mapping[str, float]) -> float:
    """Seconds of one decode that reads so many bytes of each kind."""
    slopes = ((law.s_per_byte.get(kind, law.other_s_per_byte), b) for kind, b in read_bytes.items())
    return law.fixed_s + sum(slope * read for slope, read in slopes)


def _fit(mixes: Sequence[TimedMix], by_weights: bool, pull: float) -> DecodeLaw:
    """Least squares of relative errors: first a constant and one slope, for all bytes or for all
    weights, then a slope each kind, pulled towards that one so strongly; nothing is below 0."""
    kinds = sorted({kind for mix in mixes for kind in mix.read_bytes})
    # Of what has one slope, in a byte of each kind.
    amounts = np.array(
        [8 / by_name(kind.removesuffix(ROUTED)).bpw if by_weights else 1.0 for kind in kinds]
    )
    read_bytes = np.array([[mix.read_bytes.get(kind, 0.0) for kind in kinds] for mix in mixes])
    read = read_bytes * amounts
    seconds = np.array([mix.seconds for mix in mixes])
    rows = np.column_stack([np.ones(len(mixes)), read.sum(axis=1)]) / seconds[:, None]
    fixed, common = _at_least_nothing(rows, np.ones(len(mixes)))
    slopes = np.full(len(kinds), common)
    if common > 0:
        # In units of the common slope, so that a pull means the same for every model.
        rows = np.column_stack([np.ones(len(mixes)), read * common]) / seconds[:, None]
        strength = np.sqrt(pull)
        pulls = np.column_stack([np.zeros(len(kinds)), np.eye(len(kinds)) * strength])
        wanted = np.concatenate([np.ones(len(mixes)), np.full(len(kinds), strength)])
        fixed, *units = _at_least_nothing(np.vstack([rows, pulls]), wanted)
        slopes = np.array(units) * common
    return DecodeLaw(
        fixed_s=float(fixed),
        s_per_byte=dict(zip(kinds, (slopes * amounts).tolist(), strict=True)),
        other_s_per_byte=float(common * read.sum() / read_bytes.sum()),
        fitted=len(mixes),
        held_out=0,
        error=None,
        largest_error=None,
    )


def _at_least_nothing(rows: Floats, wanted: Floats) -> Floats:
    """Least squares without negative terms: what comes out below 0 is left out, and the rest
    solved again."""
    kept = np.arange(rows.shape[1])
    found = np.zeros(rows.shape[1])
    while len(kept):
        scale = np.maximum(np.abs(rows[:, kept]).max(axis=0), 1e-300)
        solved = np.linalg.lstsq(rows[:, kept] / scale, wanted, rcond=None)[0] / scale
        if (solved >= 0).all():
            found[kept] = solved
            break
        kept = kept[solved >= 0]
    return found


MEDIAN = math.sqrt(math.pi / 2)
"""Spread of a median over that of a mean; an upper bound for few values."""


@dataclass(frozen=True)
class LogSpread:
    """Standard deviation ``sd`` of a logarithm, known by ``freedom`` degrees of freedom."""

    sd: float
    freedom: int

    def of_median(self, passes: int) -> LogSpread:
        """Of the median over so many passes, of each of which this is the spread."""
        return replace(self, sd=self.sd * MEDIAN / math.sqrt(passes))

    def half_width(self, confidence: float = 0.95) -> float:
        """Two such measurements of one file differ by less than this share at ``confidence``."""
        quantile = student_quantile(0.5 + confidence / 2, self.freedom)
        return math.expm1(quantile * math.sqrt(2.0) * self.sd)


def noise_of(log_speeds: Floats) -> LogSpread:
    """Of one pass, from log-speeds [candidates, passes] of the same files.

    What all candidates of a pass share is drift of the machine, which falls on all alike; the
    rest, pooled over candidates, is noise.
    """
    if log_speeds.ndim != 2 or min(log_speeds.shape) < 2:
        raise InputError("timing noise needs two candidates and two passes at least")
    rest = log_speeds - log_speeds.mean(axis=1, keepdims=True)
    rest = rest - rest.mean(axis=0, keepdims=True)
    freedom = (log_speeds.shape[0] - 1) * (log_speeds.shape[1] - 1)
    return LogSpread(math.sqrt(float((rest**2).sum()) / freedom), freedom)


FEWEST_PAIRS = 3


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: the correlation of ranks, those that are equal sharing their mean rank.

    None with fewer than :data:`FEWEST_PAIRS` pairs, or where one does not vary.
    """
    if len(one) < FEWEST_PAIRS:
        return None
    ranks = np.array([_ranks(one), _ranks(other)])
    if (ranks.std(axis=1) == 0).any():
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> Floats:
    array = np.asarray(values, np.float64)
    _, which, counts = np.unique(array, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[which])
