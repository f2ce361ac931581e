"""A token's probability under the target's sampling chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

import numpy as np

from cook.formats.arrays import Floats, Floats32, Ids
from cook.formats.sampling import Sampling

MOST_APART = 32.0
"""Largest difference of logits over the temperature that is searched: servers report less."""


def chain_logp(
    sampler: Sampling, tokens: Ids, logp: Floats32, top_ids: Ids, top_logp: Floats32
) -> Floats32:
    """Log-probability of each token under ``sampler`` [n], from the stored candidates [n, K].

    Exact where the chain's top_k is at most K, else short of the mass that is not stored. Where
    the token is not among the candidates the chain kept (a hole, a near-tie), its raw ``logp``.
    0, certain, when greedy. A repeat penalty is left out of account.
    """
    if not sampler.temperature:
        return np.zeros(len(tokens), np.float32)
    found = logp.astype(np.float32, copy=True)
    for at, token in enumerate(tokens.tolist()):
        present = top_ids[at] >= 0
        if not present.any():
            continue
        ids, scaled = _kept(sampler, top_ids[at][present], top_logp[at][present])
        where = np.nonzero(ids == token)[0]
        if len(where):
            found[at] = scaled[where[0]] - np.log(np.exp(scaled).sum())
    return found


def _kept(sampler: Sampling, ids: Ids, logp: Floats32) -> tuple[Ids, Floats]:
    """The candidates that the chain keeps of those given, likeliest first, and their logits over
    the temperature, below the largest."""
    chain = sampler.whole_request()
    top_p, min_p = chain["top_p"], chain["min_p"]
    most = int(chain["top_k"]) or len(ids)
    kept, ids = logp[:most].astype(np.float64), ids[:most]
    shares = np.exp(kept - kept[0])
    shares /= shares.sum()
    if top_p < 1.0:
        last = int(np.searchsorted(np.cumsum(shares), top_p)) + 1
        kept, ids = kept[:last], ids[:last]
    if min_p > 0.0:
        inside = kept >= kept[0] + np.log(min_p)
        kept, ids = kept[inside], ids[inside]
    return ids, (kept - kept[0]) / sampler.temperature


@dataclass(frozen=True)
class Draws:
    """Which draws of a uniform number in [0, 1) give which token, at one place of a text.

    A server draws once a token, by the cumulated probabilities of the candidates that its chain
    keeps, likeliest first. ``ranges`` [low, high) of each kept token; ``logits`` over the
    temperature of all that were reported, below the largest; ``temperature`` above 0.
    """

    ranges: Mapping[int, tuple[float, float]]
    logits: Mapping[int, float]
    temperature: float

    @classmethod
    def of(cls, sampler: Sampling, ids: Ids, logp: Floats32) -> Draws:
        """The draws of the likeliest candidates, falling; ``sampler`` is whole."""
        kept, scaled = _kept(sampler, ids, logp)
        high = np.cumsum(np.exp(scaled)) / np.exp(scaled).sum()
        low = np.concatenate([[0.0], high[:-1]])
        below = (logp.astype(np.float64) - float(logp[0])) / sampler.temperature
        return cls(
            dict(zip(kept.tolist(), zip(low.tolist(), high.tolist(), strict=True), strict=True)),
            dict(zip(ids.tolist(), below.tolist(), strict=True)),
            sampler.temperature,
        )

    def gap(self, ours: int, theirs: int) -> float | None:
        """How far logits have to part for a draw that gives ``ours`` to give ``theirs``; None:
        unknown.

        In the unit of a greedy difference, where it is the difference of the two logits. A draw
        at the border of the two tokens' ranges needs next to nothing, however different their
        probabilities are. Between others lie candidates that the draw has to pass over: those
        before it gain on those behind, or change their places.
        """
        if ours not in self.ranges or theirs not in self.logits:
            return None
        low, high = 0.0, MOST_APART
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if self._reached(ours, theirs, middle) else (middle, high)
        return self.temperature * high

    def _reached(self, ours: int, theirs: int, apart: float) -> bool:
        """Whether some draw of ``ours`` is one of ``theirs`` once logits parted by ``apart``."""
        logits = np.array(list(self.logits.values()))
        weight, mine = np.exp(logits), self.logits[theirs]
        least = min(self.logits[token] for token in self.ranges)
        stays, enters = logits >= least + apart, logits >= least - apart
        if mine < least - apart:
            return False  # the chain cuts it away all the same
        before = weight[stays & (logits > mine + apart)].sum()
        first = before / weight[enters].sum()
        itself = np.array([token == theirs for token in self.logits])
        before = enters & (logits >= mine - apart) | itself
        last = weight[before].sum() / weight[before | stays].sum()
        begin, end = self.ranges[ours]
        return _moved(first, -apart) < end and _moved(last, apart) > begin

    def gap_at_least(self) -> float:
        """Lower bound of :meth:`gap` for a token that was not reported, so below all others."""
        least = min(self.logits[token] for token in self.ranges)
        return self.temperature * (least - min(self.logits.values()))

    def may_become(self, ours: int, other: Draws, theirs: int) -> bool:
        """Whether one draw gives ``ours`` here and ``theirs`` there."""
        if ours not in self.ranges or theirs not in other.ranges:
            return False
        (low, high), (least, most) = self.ranges[ours], other.ranges[theirs]
        return max(low, least) < min(high, most)


def _moved(share: float, by: float) -> float:
    """``share`` with the logarithm of its odds moved."""
    if not 0.0 < share < 1.0:
        return share
    return 1.0 / (1.0 + (1.0 - share) / share * exp(-by))
