"""Predicted speed under rejection sampling, from a trace drawn at a temperature above 0.

Rejection sampling (Leviathan et al. 2023) is scored without Monte Carlo. Neither engine's server
verifies this way today (llama.cpp PR #27694 would), but a trace keeps what is needed to say what
it would bring: given that the target emitted y, y was an accepted draft token with probability
a = min(1, q(y) / p(y)), both after temperature (docs/internals/scoring.md#rejection-sampling).
Expectations over all of the draft's draws follow by dynamic programming, exactly.

The target's probabilities are those under its whole chain; the draft is taken to draw at the same
temperature, its tail not cut, which is a valid proposal though not the best: a draft cut as the
target is would be accepted more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.scoring.batch_curve import Timings
from cook.scoring.price import Breakdown
from cook.scoring.simulate import RULES, Profile


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


@dataclass(frozen=True, eq=False)
class SampledReply:
    """``accept`` [n]: acceptance probability of each emitted token, after ``prompt`` tokens."""

    prompt: int
    accept: Floats
    n_predict: int | None
    category: str = "all"
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class ExpectedReply:
    """One reply under a sampling chain, by the engine's rule and by rejection sampling: (lower,
    upper) end of what stored probabilities say of every token (:mod:`cook.scoring.chains`)."""

    engine: tuple[SampledReply, SampledReply]
    rejection: tuple[SampledReply, SampledReply]


@dataclass(frozen=True)
class SampledPrediction:
    """Expected counts over all replies, and the speed they make; ``None`` without timings."""

    n_max: int
    draft_n: float
    draft_n_accepted: float
    cycles: float
    decode_tokens_per_s: float | None
    breakdown: Breakdown | None

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / cycles."""
        return 1.0 + self.draft_n_accepted / self.cycles if self.cycles else None


def predict_sampled(
    replies: Sequence[SampledReply], n_max: int, timings: Timings | None, profile: Profile
) -> SampledPrediction:
    """Drafts of ``n_max`` tokens over ``replies``, verified by rejection sampling."""
    if not replies:
        raise InputError("no replies to predict from")
    runs = [expected_run(reply.accept, n_max, reply.n_predict) for reply in replies]
    spent = speed = None
    if timings is not None:
        pairs = zip(runs, replies, strict=True)
        spent = Breakdown.of([_price(run, reply, timings, profile) for run, reply in pairs])
        tokens = sum(reply.weight * (len(reply.accept) - 1) for reply in replies)
        speed = tokens / spent.total_s if spent.total_s > 0 else None
    return SampledPrediction(
        n_max,
        sum(run.draft_n for run in runs),
        sum(run.draft_n_accepted for run in runs),
        sum(run.cycles for run in runs),
        speed,
        spent,
    )


def _price(run: Expected, reply: SampledReply, timings: Timings, profile: Profile) -> Breakdown:
    """Expected decode seconds, times the reply's weight.

    Engines that keep the draft's cache also decode one token after each fully accepted draft;
    that is left out, as its probability is not kept.
    """
    depth = reply.prompt + np.arange(1, len(run.visits)) - 1  # no step starts at the first token
    visits, length = run.visits[1:] * reply.weight, run.lengths[1:]
    verify = timings.verify.at(length + 1, depth)
    sampled = (run.draft_n_accepted + run.steps) * reply.weight * timings.target_sample_s
    draft, mirror = np.zeros(len(length)), np.zeros(len(length))
    if timings.draft is None and length.any():
        raise InputError("the draft's times are missing")
    if timings.draft is not None:
        single = timings.draft.at(1, depth) + timings.draft_sample_s
        draft = length * single
        if RULES[profile].mirrors:
            mirror = timings.draft.at(length + 1, depth)
    verify_s, draft_s, mirror_s = (float((visits * one).sum()) for one in (verify, draft, mirror))
    return Breakdown(verify_s, draft_s, mirror_s, sampled)
