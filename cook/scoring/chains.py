"""Acceptance under another sampling chain than the one that a trace was recorded with.

A trace keeps the target's likeliest tokens with their raw probabilities, and a replay those of the
draft, so that at every recorded position the chance of acceptance follows for any temperature,
top_k, top_p and min_p, by both rules (docs/internals/scoring.md#other-chains):

- by the engines': the target draws, and the draft's first choice d is accepted if it is drawn,
  with the probability p(d) under the chain;
- by rejection sampling (Leviathan et al. 2023): sum over tokens of min(p, q).

What was not stored bounds both from below and above. What no bound covers is the text: the
positions are those of the recorded one, and another temperature writes another. On the demo's pair
a greedy text flatters every temperature above it; a trace of that temperature has no such error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.formats.arrays import Floats, Ids
from cook.formats.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Chances:
    """Bounds of one probability a position [n] each, ``low`` <= it <= ``high``."""

    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class Distribution:
    """What a chain leaves of a model's next-token distribution at n positions.

    ``ids`` [n, K], -1 where absent; ``low``, ``high`` [n, K]: bounds of their probabilities, 0
    where the chain cuts a token; ``rest`` [n]: the most that all other tokens have together, and
    ``other`` [n] the most that any one of them has.
    """

    ids: Ids
    low: Floats
    high: Floats
    rest: Floats
    other: Floats

    def of(self, tokens: Ids) -> Chances:
        """The probability of ``tokens`` [n], one a position."""
        here = self.ids == tokens[:, None]
        known = here.any(axis=1)
        low = np.where(known, (self.low * here).sum(axis=1), 0.0)
        high = np.where(known, (self.high * here).sum(axis=1), self.other)
        return Chances(low, high)

    def overlap(self, draft: Distribution) -> Chances:
        """The sum over tokens of the lesser probability of the two: the chance that a token of
        ``draft`` passes rejection sampling."""
        low, high = np.zeros(len(self.ids)), np.zeros(len(self.ids))
        theirs, ours = np.zeros(len(self.ids)), np.zeros(len(self.ids))
        for k in range(self.ids.shape[1]):  # a place of the target at a time: [n, K], not [n, K, K]
            ids = self.ids[:, k]
            same = (draft.ids == ids[:, None]) & (ids >= 0)[:, None]
            both = same.any(axis=1)
            least, most = (draft.low * same).sum(axis=1), (draft.high * same).sum(axis=1)
            low += np.where(both, np.minimum(self.low[:, k], least), 0.0)
            high += np.where(both, np.minimum(self.high[:, k], most), 0.0)
            # What each side has on tokens that only it knows, and may share with the other's rest.
            ours += np.where(both, 0.0, np.minimum(self.high[:, k], draft.other))
            theirs += np.where(both, least, 0.0)
        unseen = np.minimum(ours + self.rest, np.maximum(1.0 - theirs, 0.0))
        return Chances(low, np.minimum(high + unseen, 1.0))


def chain_distribution(
    sampling: Sampling, ids: Ids, logp: npt.ArrayLike, vocabulary_size: int
) -> Distribution:
    """The distribution under ``sampling``, which leaves nothing open, of a model whose likeliest
    tokens ``ids`` [n, K] have the raw log-probabilities ``logp``, falling.

    The order of the chain is that of :class:`Sampling`. A repeat penalty is left out of account.
    With N unseen tokens of probability r in all, none above the last one stored, the sum of their
    p^(1/T) lies between N (r/N)^(1/T) (all alike) and last^(1/T - 1) r (the most uneven).
    """
    raw = np.asarray(logp, np.float64)
    count, stored = raw.shape
    present = ids >= 0
    if not sampling.temperature:
        first = np.zeros(raw.shape)
        first[:, 0] = 1.0
        none = np.zeros(count)
        return Distribution(ids, first, first, none, none)
    top_k, top_p, min_p = sampling.top_k or 0, sampling.top_p or 1.0, sampling.min_p or 0.0
    kept, mass = present.copy(), np.where(present, np.exp(raw), 0.0)
    rest = np.clip(1.0 - mass.sum(axis=1), 0.0, 1.0)
    share = mass
    if 0 < top_k <= stored:
        kept[:, top_k:] = False
        share = np.where(kept, mass, 0.0)
        share = share / share.sum(axis=1, keepdims=True)
        rest = np.zeros(count)
    whole = np.ones(count, bool)  # whether all that was not stored stays
    if top_p < 1.0:
        before = np.cumsum(share, axis=1) - share
        kept &= before < top_p
        rest = np.where(share.sum(axis=1) >= top_p, 0.0, rest)
        whole &= rest == 0.0
    if min_p > 0.0:
        bar = raw[:, :1] + np.log(min_p)
        kept &= raw >= bar
        rest = np.where(raw[:, -1] < bar[:, 0], 0.0, rest)
        whole &= rest == 0.0
    power = 1.0 / sampling.temperature
    # Relative to the likeliest, since p^(1/T) of a low temperature is next to nothing.
    weight = np.where(kept, np.exp((raw - raw[:, :1]) * power), 0.0)
    unseen = max(vocabulary_size - stored, 1)
    with np.errstate(divide="ignore"):
        alike = np.log(unseen) + power * (np.log(rest) - np.log(unseen) - raw[:, 0])
        uneven = np.log(rest) + (power - 1.0) * raw[:, -1] - power * raw[:, 0]
    ends = np.exp(np.stack([alike, uneven]))
    least, most = np.where(whole, ends.min(axis=0), 0.0), ends.max(axis=0)
    known = weight.sum(axis=1)
    last = np.exp((raw[:, -1] - raw[:, 0]) * power)
    return Distribution(
        ids,
        low=weight / (known + most)[:, None],
        high=weight / (known + least)[:, None],
        rest=most / (known + most),
        other=np.minimum(most, last) / (known + least),
    )
