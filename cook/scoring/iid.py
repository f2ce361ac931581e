"""Speed from a handful of numbers, as if every drafted token were accepted independently.

Leviathan et al. 2023 with a measured verification curve
(docs/internals/scoring.md#one-acceptance-for-all-text). Real text is not so: acceptance varies over
contents, and since 1/tau is convex in it, one pooled number is biased up (by 0.4 to 7.4 % measured
on a tiny model). A trace has no such bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve, Timings
from cook.scoring.price import price
from cook.scoring.simulate import RULES, Profile, Simulation

CAVEAT = (
    "one acceptance for all contents: acceptance varies, and then the pooled number predicts "
    "too much; `cook predict TRACE DRAFT` does not have this bias"
)


@dataclass(frozen=True)
class IidRow:
    """Drafts of ``n_max`` tokens. ``acceptance`` is expected accepted / drafted, ``break_even``
    the one at which drafting just pays; ``speedup`` is over no draft."""

    n_max: int
    acceptance: float
    acceptance_length: float
    cycle_ms: float
    decode_tokens_per_s: float
    speedup: float
    break_even: float


def tokens_per_cycle(alpha: float, n_max: int) -> float:
    """tau = (1 - alpha^(g+1)) / (1 - alpha): tokens that a verification yields."""
    return sum(alpha**k for k in range(n_max + 1))


def alpha_of(acceptance: float, n_max: int) -> float:
    """The alpha at which accepted / drafted is ``acceptance`` for drafts of ``n_max`` tokens."""
    if not 0.0 <= acceptance <= 1.0 or n_max < 1:
        raise InputError(f"an acceptance is between 0 and 1, not {acceptance}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (tokens_per_cycle(middle, n_max) - 1) / n_max < acceptance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def cycle_s(
    n_max: int, verify: BatchCurve, draft_s: float, overhead_s: float, mirrors: bool
) -> float:
    """Seconds of one cycle: verification, single decodes of the draft and, where the engine
    re-evaluates the verify batch with the draft, one more."""
    decodes = n_max + (1 if mirrors and n_max else 0)
    return float(verify.at(n_max + 1, 0)) + decodes * draft_s + (overhead_s if n_max else 0.0)


def iid_row(
    alpha: float,
    n_max: int,
    verify: BatchCurve,
    draft_s: float,
    profile: Profile,
    overhead_s: float = 0.0,
) -> IidRow:
    """The figures of one draft length; ``alpha`` in [0, 1], times in seconds."""
    if not 0.0 <= alpha <= 1.0:
        raise InputError(f"an acceptance is between 0 and 1, not {alpha}")
    mirrors = RULES[profile].mirrors
    length = tokens_per_cycle(alpha, n_max)
    cycle = cycle_s(n_max, verify, draft_s, overhead_s, mirrors)
    plain = cycle_s(0, verify, draft_s, overhead_s, mirrors)
    return IidRow(
        n_max=n_max,
        acceptance=(length - 1) / n_max,
        acceptance_length=length,
        cycle_ms=cycle * 1000,
        decode_tokens_per_s=length / cycle,
        speedup=length * plain / cycle,
        break_even=(cycle / plain - 1) / n_max,
    )


def best_length(alpha: float, verify_s: float, draft_s: float) -> float:
    """The real-valued optimum of (1 - alpha^(g+1)) / (g c + v), v and c constant.

    g = (-W_-1(-e^-k) - k) / L - 1 with L = -ln alpha, k = L (v/c - 1) + 1, W_-1 the lower branch
    of Lambert's function (docs/internals/scoring.md#the-best-length-in-closed-form).
    A sanity value: a real v grows with g.
    """
    if not 0.0 < alpha < 1.0 or not verify_s > draft_s > 0.0:
        raise InputError("the closed form needs 0 < alpha < 1 and a draft faster than its target")
    rate = -math.log(alpha)
    k = rate * (verify_s / draft_s - 1) + 1
    # y = -W_-1(-e^-k) for k >= 1: the root above 1 of y - ln y = k.
    y = k + math.log(k) + 1.0
    for _ in range(100):
        step = (y - math.log(y) - k) / (1.0 - 1.0 / y)
        y -= step
        if abs(step) < 1e-13 * y:
            break
    return (y - k) / rate - 1


def break_even(timings: Timings, n_max: int, profile: Profile, depth: int) -> float | None:
    """Accepted/drafted at which drafting ``n_max`` tokens every step just pays at ``depth``.

    A cycle that accepts a of L tokens takes T(L) and yields 1 + a; plain decoding yields one in
    T(0): they are equal at a = T(L)/T(0) - 1. Above 1 (all accepted) drafting cannot pay; the
    value is returned as it is. None for n_max 0.
    """
    if n_max == 0:
        return None
    one = np.array([1])
    cycle = Simulation(one, one * n_max, one * 0, one * n_max, one * 0)
    plain = Simulation(one, one * 0, one * 0, one * 0, one * 0)
    bare = timings.without_draft()
    t_cycle = price(cycle, depth, timings, profile).total_s
    t_plain = price(plain, depth, bare, profile).total_s
    # each accepted token also costs one more sampling
    return (t_cycle - t_plain) / ((t_plain - timings.target_sample_s) * n_max)
