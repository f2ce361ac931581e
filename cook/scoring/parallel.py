"""Drafting during verification, simulated on a trace: what two published schemes would give.

No engine has either. Both are head-room, under the same assumptions: the draft runs on a device of
its own, so that neither model slows the other; tokens travel in no time; the target's token is
that of the trace, and the draft's are its argmax, as :mod:`cook.scoring.simulate` has them.

- **PEARL** (Liu et al. 2024, arXiv 2408.11850), one target. *Pre-verify*: while the draft writes
  ``n_max`` tokens, the target verifies the first of them. If that is wrong, the target's own stands
  in its place. Else *post-verify*: while the target verifies the other tokens of the block, the
  draft writes the next block; if all were right, that block is verified next in the same way, else
  the target's token follows and it goes on with pre-verify. A cycle takes the longer of the two.
- **DSI** (Timor et al. 2024, arXiv 2405.14105), as many target servers as it takes to verify at
  every drafted token: an accepted token costs a decode of the draft, a rejected one the target's
  own step, which began when its prefix was drafted. Never slower than no draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cook.errors import InputError
from cook.scoring.batch_curve import Timings
from cook.scoring.simulate import Positions


@dataclass(frozen=True)
class ParallelSpeed:
    """Decode speed of drafts written during verification; ``servers`` of the target at work."""

    decode_tokens_per_s: float
    n_max: int | None
    servers: int


def pearl(
    replies: Sequence[Positions], weights: Sequence[float], lengths: Sequence[int], times: Timings
) -> ParallelSpeed:
    """PEARL at the fastest of ``lengths``."""
    found = [
        ParallelSpeed(_speed(replies, weights, [_pearl_s(r, n, times) for r in replies]), n, 1)
        for n in lengths
    ]
    return max(found, key=lambda one: one.decode_tokens_per_s)


def dsi(replies: Sequence[Positions], weights: Sequence[float], times: Timings) -> ParallelSpeed:
    """DSI with as many target servers as a verification takes decodes of the draft."""
    speed = _speed(replies, weights, [_dsi_s(r, times) for r in replies])
    depth = max(r.prompt for r in replies)
    servers = math.ceil(_target_s(times, 1, depth) / _draft_s(times, depth))
    return ParallelSpeed(speed, None, max(servers, 1))


def _pearl_s(reply: Positions, n_max: int, times: Timings) -> float:
    """Seconds of the tokens after the first."""
    spent, i, ahead = 0.0, 1, False  # ahead: a block that begins at i is drafted already
    while i < reply.reply:
        depth = reply.prompt + i - 1
        drafting = n_max * _draft_s(times, depth)
        if not ahead:
            spent += max(drafting, _target_s(times, 1, depth))
            if not reply.match[i]:
                i += 1  # the target's own token in its place
                continue
            # The first is right: the rest of the block is verified while the next is written.
            held, verified = i + 1, n_max - 1
        else:
            held, verified = i, n_max
        if (
            not verified
        ):  # blocks of one token: there was no verification during which to write the next
            i = held
            continue
        spent += max(drafting, _target_s(times, verified, reply.prompt + held - 1))
        right = min(reply.run[held], verified) if held < len(reply.run) else verified
        ahead = right == verified
        i = held + right + (0 if ahead else 1)
    return spent


def _dsi_s(reply: Positions, times: Timings) -> float:
    """The same: a wrong token costs a step of the target, a right one a decode of the draft."""
    at = np.arange(1, reply.reply)
    if not len(at):
        return 0.0
    depth = reply.prompt + at - 1
    if times.draft is None:
        raise InputError("the draft's times are missing")
    own = times.verify.at(1, depth) + times.target_sample_s
    drafted = np.minimum(times.draft.at(1, depth) + times.draft_sample_s, own)
    spent = np.where(reply.match[1 : reply.reply], drafted, own)
    # Nothing is drafted during the last verification, which began when all before it was drafted.
    return float(spent[:-1].sum() + own[-1])


def _target_s(times: Timings, width: int, depth: int) -> float:
    """A verification of ``width`` tokens with the sampling of its last."""
    return float(times.verify.at(width, depth)) + times.target_sample_s


def _draft_s(times: Timings, depth: int) -> float:
    if times.draft is None:
        raise InputError("the draft's times are missing")
    return float(times.draft.at(1, depth)) + times.draft_sample_s


def _speed(
    replies: Sequence[Positions], weights: Sequence[float], seconds: Sequence[float]
) -> float:
    tokens = sum(w * (r.reply - 1) for w, r in zip(weights, replies, strict=True))
    spent = sum(w * s for w, s in zip(weights, seconds, strict=True))
    return tokens / spent if spent else 0.0
