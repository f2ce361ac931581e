"""A token's probability under the target's sampling chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cook.formats.arrays import Floats32, Ids
from cook.formats.sampling import Sampling

if TYPE_CHECKING:
    pass


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
    chain = sampler.whole_request()
    top_p, min_p = chain["top_p"], chain["min_p"]
    most = int(chain["top_k"]) or top_ids.shape[1]
    for at, token in enumerate(tokens.tolist()):
        present = top_ids[at] >= 0
        kept = top_logp[at][present][:most].astype(np.float64)
        ids = top_ids[at][present][:most]
        if not len(kept):
            continue
        shares = np.exp(kept - kept[0])
        shares /= shares.sum()
        if top_p < 1.0:
            last = int(np.searchsorted(np.cumsum(shares), top_p)) + 1
            kept, ids = kept[:last], ids[:last]
        if min_p > 0.0:
            inside = kept >= kept[0] + np.log(min_p)
            kept, ids = kept[inside], ids[inside]
        where = np.nonzero(ids == token)[0]
        if len(where):
            scaled = (kept - kept[0]) / sampler.temperature
            found[at] = scaled[where[0]] - np.log(np.exp(scaled).sum())
    return found
