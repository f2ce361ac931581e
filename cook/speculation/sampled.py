"""Predicted speed under rejection sampling, from a trace drawn at a temperature above 0.

No server verifies this way yet; a trace holds what is needed to say what it would bring
(rejection.py). All counts are expectations over the draft's draws. The target's probabilities are
those under its whole chain; the draft is taken to draw at the same temperature, its tail not cut,
which is a valid proposal though not the best: a draft cut as the target is would be accepted more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cook.errors import InputError
from cook.speculation.predict import NOTHING, Breakdown, Timings
from cook.speculation.profiles import RULES, Profile
from cook.speculation.rejection import Expected, Floats, expected_run


@dataclass(frozen=True, eq=False)
class SampledReply:
    """``accept`` [n]: acceptance probability of each emitted token, after ``prompt`` tokens."""

    prompt: int
    accept: Floats
    n_predict: int | None
    category: str = "all"
    weight: float = 1.0


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
    drafted = accepted = cycles = tokens = 0.0
    total = NOTHING
    for reply in replies:
        run = expected_run(reply.accept, n_max, reply.n_predict)
        drafted += run.draft_n
        accepted += run.draft_n_accepted
        cycles += run.cycles
        tokens += reply.weight * (len(reply.accept) - 1)
        if timings is not None:
            total = total + _price(run, reply, timings, profile)
    speed = tokens / total.total_s if total.total_s > 0 else None
    return SampledPrediction(
        n_max, drafted, accepted, cycles, speed, total if timings is not None else None
    )


def _price(run: Expected, reply: SampledReply, timings: Timings, profile: Profile) -> Breakdown:
    """Expected decode seconds, times the reply's weight.

    Engines that keep the draft's cache also decode one token after each fully accepted draft;
    that is left out, as its probability is not kept.
    """
    depth = reply.prompt + np.arange(len(run.visits)) - 1
    visits, length = run.visits * reply.weight, run.lengths
    verify = float((visits * timings.verify.at(length + 1, depth)).sum())
    sampled = (run.draft_n_accepted + run.steps) * reply.weight * timings.target_sample_s
    draft = mirror = 0.0
    if timings.draft is None and length.any():
        raise InputError("the draft's times are missing")
    if timings.draft is not None:
        single = timings.draft.at(1, depth) + timings.draft_sample_s
        draft = float((visits * length * single).sum())
        if RULES[profile].mirrors:
            mirror = float((visits * timings.draft.at(length + 1, depth)).sum())
    overhead = np.where(length > 0, timings.overhead_s, timings.plain_overhead_s)
    each = overhead + length * timings.decode_overhead_s
    return Breakdown(verify, draft, mirror, sampled, float((visits * each).sum()))
