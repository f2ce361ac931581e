"""Acceptance where the target samples: under other chains than the trace's, and by rejection.

A trace keeps the target's likeliest tokens with their raw probabilities, and a replay those of the
draft, so that at every recorded position the chance of acceptance follows for any temperature,
top_k, top_p and min_p, by both rules (docs/internals/scoring.md#other-chains):

- by the engines': the target draws, and the draft's first choice d is accepted if it is drawn,
  with the probability p(d) under the chain;
- by rejection sampling (Leviathan et al. 2023): sum over tokens of min(p, q).

What was not stored bounds both from below and above. What no bound covers is the text: the
positions are those of the recorded one, and another temperature writes another. On the demo's pair
a greedy text flatters every temperature above it; a trace of that temperature has no such error.

Speed under rejection sampling is predicted of such a trace, without Monte Carlo. Neither engine's
server verifies this way today (llama.cpp PR #27694 would), but a trace keeps what is needed to say
what it would bring: given that the target emitted y, y was an accepted draft token with probability
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
from cook.formats.arrays import Floats, Ids
from cook.formats.sampling import Sampling
from cook.scoring.batch_curve import Timings
from cook.scoring.price import Breakdown
from cook.scoring.simulate import RULES, Profile


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
    whole = np.full(count, top_k <= stored)  # whether all that was not stored stays
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
    upper) end of what stored probabilities say of every token (:mod:`cook.scoring.sampled`)."""

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
        draft = length * single + (length > 0) * timings.reload_s
        if RULES[profile].mirrors:
            mirror = timings.draft.at(length + 1, depth)
    verify_s, draft_s, mirror_s = (float((visits * one).sum()) for one in (verify, draft, mirror))
    return Breakdown(verify_s, draft_s, mirror_s, sampled)
