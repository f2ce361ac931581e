"""The target's sampling chain: a server's defaults, and a token's probability under a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from cook.errors import PrerequisiteError
from cook.formats.arrays import Floats32, Ids
from cook.formats.trace_file import Sampler

if TYPE_CHECKING:
    from cook.engines.worker.messages import SamplerChain

SERVER_TOP_K, SERVER_TOP_P, SERVER_MIN_P = 40, 0.95, 0.05
"""What llama-server of mainline samples with unless told otherwise (common/common.h)."""


def server_sampler(
    temperature: float,
    seed: int,
    draws: Literal["worker", "server"] = "worker",
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repeat_penalty: float | None = None,
) -> Sampler:
    """A chain with the server's own defaults (None); greedy keeps the likeliest token alone."""
    penalty = 1.0 if repeat_penalty is None else repeat_penalty
    if temperature <= 0:
        return Sampler(temperature=0.0, top_k=1, repeat_penalty=penalty, seed=seed, draws=draws)
    return Sampler(
        temperature=temperature,
        top_k=SERVER_TOP_K if top_k is None else top_k,
        top_p=SERVER_TOP_P if top_p is None else top_p,
        min_p=SERVER_MIN_P if min_p is None else min_p,
        repeat_penalty=penalty,
        seed=seed,
        draws=draws,
    )


def worker_chain(sampler: Sampler) -> SamplerChain | None:
    """``sampler`` in the worker's words; None is greedy. The worker knows no penalties."""
    from cook.engines.worker.messages import SamplerChain

    if sampler.repeat_penalty != 1.0:
        raise PrerequisiteError(
            f"cook's worker cannot sample with a repeat penalty ({sampler.repeat_penalty:g})",
            hint="record from a running llama-server: cook trace --target http://HOST:PORT",
        )
    if not sampler.temperature:
        return None
    return SamplerChain(
        sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p, sampler.seed
    )


def request_of(sampler: Sampler) -> dict[str, float]:
    """``sampler`` as the keys of a llama-server request; penalties that it may default to: off."""
    return {
        "temperature": sampler.temperature,
        "top_k": sampler.top_k,
        "top_p": sampler.top_p,
        "min_p": sampler.min_p,
        "seed": sampler.seed,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "repeat_penalty": sampler.repeat_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
    }


def chain_logp(
    sampler: Sampler, tokens: Ids, logp: Floats32, top_ids: Ids, top_logp: Floats32
) -> Floats32:
    """Log-probability of each token under ``sampler`` [n], from the stored candidates [n, K].

    Exact where the chain's top_k is at most K, else short of the mass that is not stored. Where
    the token is not among the candidates the chain kept (a hole, a near-tie), its raw ``logp``.
    0, certain, when greedy. A repeat penalty is left out of account.
    """
    if not sampler.temperature:
        return np.zeros(len(tokens), np.float32)
    found = logp.astype(np.float32, copy=True)
    most = sampler.top_k or top_ids.shape[1]
    for at, token in enumerate(tokens.tolist()):
        present = top_ids[at] >= 0
        kept = top_logp[at][present][:most].astype(np.float64)
        ids = top_ids[at][present][:most]
        if not len(kept):
            continue
        shares = np.exp(kept - kept[0])
        shares /= shares.sum()
        if sampler.top_p < 1.0:
            last = int(np.searchsorted(np.cumsum(shares), sampler.top_p)) + 1
            kept, ids = kept[:last], ids[:last]
        if sampler.min_p > 0.0:
            inside = kept >= kept[0] + np.log(sampler.min_p)
            kept, ids = kept[inside], ids[inside]
        where = np.nonzero(ids == token)[0]
        if len(where):
            scaled = (kept - kept[0]) / sampler.temperature
            found[at] = scaled[where[0]] - np.log(np.exp(scaled).sum())
    return found
