"""Rejection sampling (Leviathan et al. 2023), scored from a trace without Monte Carlo.

Neither engine's server verifies this way today (llama.cpp PR #27694 would), so the trace keeps
what is needed to score it: given that the target emitted y, y was an accepted draft token with
probability a = min(1, q(y) / p(y)), both after temperature
(docs/internals/scoring.md#rejection-sampling). Expectations over all runs follow by dynamic
programming, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expected:
    """Expectations over runs of one reply. ``visits`` [n]: probability that a step starts at each
    position; ``lengths`` [n]: tokens drafted by a step there. ``steps`` includes plain ones.
    """

    draft_n: float
    draft_n_accepted: float
    cycles: float
    steps: float
    visits: Floats
    lengths: npt.NDArray[np.int64]


def acceptance_probabilities(logp: npt.ArrayLike, logq: npt.ArrayLike) -> Floats:
    """min(1, q/p) of each emitted token from its two log-probabilities."""
    difference = np.asarray(logq, np.float64) - np.asarray(logp, np.float64)
    return np.asarray(np.exp(np.minimum(difference, 0.0)))


def expected_run(accept: npt.ArrayLike, n_max: int, n_predict: int | None = None) -> Expected:
    """Expected counts for drafts of ``n_max`` tokens.

    ``accept`` [n]: acceptance probability of each emitted token (the first comes with the prompt
    and is never drafted). Drafts are cut to the request's limit as the servers do. From position
    i a step of L tokens accepts exactly k < L with prod(a_i..a_{i+k-1}) (1 - a_{i+k}) and goes on
    at i+k+1; all L with the whole product, and goes on at i+L+1.
    """
    a = np.asarray(accept, np.float64)
    n = len(a)
    if n == 0 or n_max < 0 or not ((a >= 0) & (a <= 1)).all():
        raise InputError("acceptance probabilities must lie in [0, 1]")
    visits = np.zeros(n + n_max + 2)
    lengths = np.zeros(n, dtype=np.int64)
    limit = n_predict if n_predict is not None else n + n_max + 1
    accepted = 0.0
    if n > 1:
        visits[1] = 1.0
    for i in range(1, n):
        here = visits[i]
        length = max(0, min(n_max, limit - i - 1))
        lengths[i] = length
        if length == 0:
            visits[i + 1] += here
            continue
        known = a[i : i + length]
        # past the recorded text nothing is accepted; the run has ended there anyway
        chain = np.concatenate([[1.0], np.cumprod(known)])
        exactly = chain[:-1] - chain[1:]
        visits[i + 1 : i + 1 + len(known)] += here * exactly
        visits[i + 1 + len(known)] += here * chain[-1]
        accepted += here * float(chain[1:].sum())
    inside = visits[:n]
    drafted = lengths > 0
    return Expected(
        draft_n=float(inside @ lengths),
        draft_n_accepted=accepted,
        cycles=float(inside[drafted].sum()),
        steps=float(inside.sum()),
        visits=inside,
        lengths=lengths,
    )
