"""Predicted speed of a draft: simulated cycles priced with measured times.

decode time = sum over steps [ t_v(L+1) + draft cost + sampling ], where the draft cost is,
for mainline, its single decodes plus one batch of L+1 that mirrors the verification; for engines
that keep the draft's cache, its single decodes plus what it has to catch up with (a head: what was
accepted); and where it drafts, what its weights take to come back into the caches. Speed is
(tokens - 1) / time: the first token comes with the prompt. The reading of prompts, by both models,
is no part of it, wherever an engine counts it (:mod:`cook.scoring.batch_curve`).
Totals over replies are sums of tokens over sums of times (docs/internals/scoring.md#prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from cook.errors import InputError
from cook.formats.trace_file import ReplyHead
from cook.record.record import CandidateKey, DepthCount, Figures, PromptRun
from cook.scoring.batch_curve import Timings
from cook.scoring.compare import figures
from cook.scoring.simulate import RULES, Profile, Simulation


@dataclass(frozen=True)
class Breakdown:
    """Where the decode time goes, seconds: they sum to the whole."""

    verify_s: float
    draft_s: float
    mirror_s: float
    sample_s: float

    @property
    def total_s(self) -> float:
        return self.verify_s + self.draft_s + self.mirror_s + self.sample_s

    @classmethod
    def of(cls, costs: Sequence[Breakdown]) -> Breakdown:
        """The sum of ``costs``, at least one."""
        return cls(*map(sum, zip(*map(astuple, costs), strict=True)))


def price(run: Simulation, prompt: int, timings: Timings, profile: Profile) -> Breakdown:
    """Decode time of one simulated reply after a prompt of ``prompt`` tokens."""
    depth = prompt + run.start - 1
    verify = timings.verify.at(run.length + 1, depth)
    sampled = (run.accepted + 1) * timings.target_sample_s
    draft, mirror = np.zeros(run.steps), np.zeros(run.steps)
    if run.decodes.any() or (timings.draft is not None and RULES[profile].mirrors):
        if timings.draft is None:
            raise InputError("the draft's times are missing")
        single = timings.draft.at(1, depth) + timings.draft_sample_s
        draft = run.decodes * single + (run.decodes > 0) * timings.reload_s
        if RULES[profile].mirrors:
            mirror = timings.draft.at(run.length + 1, depth)
        else:
            late = run.catch_up > 0
            mirror[late] = timings.draft.read(run.catch_up[late], depth[late])
            if RULES[profile].reads_accepted:
                mirror[late] += timings.draft_sample_s
    return Breakdown(*(float(part.sum()) for part in (verify, draft, mirror, sampled)))


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests.

    ``by_depth``: each place of a draft, from 1 on; ``spent``: where the decode time goes; both over
    all replies. ``name`` is for people.
    """

    key: CandidateKey
    name: str
    runs: tuple[PromptRun, ...]
    by_depth: tuple[DepthCount, ...]
    spent: Breakdown

    @cached_property
    def figures(self) -> Figures:
        """Over all replies, each token with the same weight."""
        return figures(self.runs)


def forecast(
    key: CandidateKey,
    name: str,
    replies: Sequence[tuple[ReplyHead, Simulation]],
    longest: int,
    prices: Timings,
    profile: Profile,
) -> Forecast:
    """Simulated replies with their times; ``longest`` draft of the candidate, 0 without one.

    InputError without a reply, and where the draft's times are missing.
    """
    if not replies:
        raise InputError("no replies to predict from")
    costs, runs, depths = [], [], np.zeros((2, longest), dtype=np.int64)
    for head, run in replies:
        cost = price(run, head.prompt_tokens, prices, profile)
        # A draft that reads late does not read at all until it drafts.
        drafts = not RULES[profile].reads_late or bool(run.decodes.any())
        prefill_s = prices.prompt_s(head.prompt_tokens, 1 + longest, drafts=drafts)
        ends = RULES[profile].breaks_at_eog  # else it counts what no client gets: live is without
        accepted = run.draft_n_accepted if ends else head.emitted - 1 - run.steps
        costs.append(cost)
        depths += np.array(run.by_depth(longest))
        runs.append(
            PromptRun(
                id=head.id,
                category=head.category,
                prompt_n=head.prompt_tokens,
                prompt_ms=prefill_s * 1000,
                predicted_n=head.emitted,
                predicted_ms=cost.total_s * 1000,
                wall_ms=(prefill_s + cost.total_s) * 1000,
                draft_n=run.draft_n if longest else None,
                draft_n_accepted=accepted if longest else None,
                tokens=None,
                text="",
                stop="",
            )
        )
    by_depth = tuple(DepthCount(d, *counts) for d, counts in enumerate(depths.T.tolist(), 1))
    return Forecast(key, name, tuple(runs), by_depth, Breakdown.of(costs))
