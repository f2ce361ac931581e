"""Seconds of a draft's decode by its bytes and types, fitted to a few timed mixes.

Bytes alone mislead: types differ in what a byte costs to read, routed experts are read in part,
and something is spent whatever the size. What nothing was timed of is by its bytes where memory
bounds, and by its weights where computing does: on a processor a type of few bits may be slower
than one of many (docs/internals/mixes.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.formats.quant_types import by_name
from cook.record.search_record import DecodeLaw

ROUTED = " routed"
FEWEST_MIXES = 3
"""Timed mixes below which nothing is fitted."""
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
    priors = [_Prior(by_weights, pull) for by_weights in (False, True) for pull in PULLS]
    law = _fit(fitted, min(priors, key=lambda prior: _left_out_error(fitted, prior)))
    if not held_out:
        return law
    off = [abs(decode_s(law, mix.read_bytes) / mix.seconds - 1) for mix in held_out]
    return replace(law, held_out=len(off), error=sum(off) / len(off), largest_error=max(off))


def decode_s(law: DecodeLaw, read_bytes: Mapping[str, float]) -> float:
    """Seconds of one decode that reads so many bytes of each kind."""
    slopes = ((law.s_per_byte.get(kind, law.other_s_per_byte), b) for kind, b in read_bytes.items())
    return law.fixed_s + sum(slope * read for slope, read in slopes)


@dataclass(frozen=True)
class _Prior:
    """What slopes are drawn to: one for all bytes, or for all weights; and how strongly."""

    by_weights: bool
    pull: float

    def amount(self, kind: str) -> float:
        """Of what has one slope, in a byte of this kind."""
        return 8 / by_name(kind.removesuffix(ROUTED)).bpw if self.by_weights else 1.0


def _left_out_error(mixes: Sequence[TimedMix], prior: _Prior) -> float:
    """Squared relative error of each mix by the fit of all others."""
    laws = (_fit([*mixes[:n], *mixes[n + 1 :]], prior) for n in range(len(mixes)))
    return sum(
        (decode_s(law, mix.read_bytes) / mix.seconds - 1) ** 2
        for law, mix in zip(laws, mixes, strict=True)
    )


def _fit(mixes: Sequence[TimedMix], prior: _Prior) -> DecodeLaw:
    """Least squares of relative errors: first a constant and one slope, then a slope each kind,
    pulled towards that one; nothing is below 0."""
    kinds = sorted({kind for mix in mixes for kind in mix.read_bytes})
    amounts = np.array([prior.amount(kind) for kind in kinds])
    read_bytes = np.array([[mix.read_bytes.get(kind, 0.0) for kind in kinds] for mix in mixes])
    read = read_bytes * amounts
    seconds = np.array([mix.seconds for mix in mixes])
    rows = np.column_stack([np.ones(len(mixes)), read.sum(axis=1)]) / seconds[:, None]
    fixed, common = _at_least_nothing(rows, np.ones(len(mixes)))
    slopes = np.full(len(kinds), common)
    if common > 0:
        # In units of the common slope, so that a pull means the same for every model.
        rows = np.column_stack([np.ones(len(mixes)), read * common]) / seconds[:, None]
        strength = np.sqrt(prior.pull)
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
