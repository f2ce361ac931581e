"""What live replies show of us and of the draft: are our counts the engine's, and does the output
stay the same? (docs/internals/scoring.md#recount, #same-output-as-without-a-draft)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cook.engines.base import DraftSettings
from cook.record.measured import OutputCheck
from cook.record.outcomes import CompareOutcome, ControlOutcome, RecountOutcome
from cook.scoring.simulate import Profile, positions_of, simulate

if TYPE_CHECKING:
    from cook.engines.worker.messages import ModelInfo
    from cook.engines.worker.worker import Worker


NEAR_TIE_GAP = 0.15
"""Logit gap up to which batched verification is known to flip greedy choices.

Used only where no control run measured this engine's own: the largest gap reported for pure
kernel noise (docs/internals/scoring.md#same-output-as-without-a-draft).
"""


@dataclass(frozen=True)
class LiveReply:
    """One request as a server with a draft answered it; ``decode_s`` is after the first token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    n_predict: int
    draft_n: int
    draft_n_accepted: int
    decode_s: float
    stop: str


def check_counts(
    worker: Worker,
    draft: ModelInfo,
    replies: Sequence[LiveReply],
    setting: DraftSettings,
    profile: Profile,
    *,
    context: int,
    batch: int | None = None,
) -> RecountOutcome:
    """Recount ``replies`` with the loaded ``draft``. ``context``: the server's; ``batch`` its -b.

    Counts are called exact only where this has passed for the engine build at hand. The worker must
    have loaded the draft as the server did: context, ubatch, threads, KV types.
    """
    slot = min(context, draft.context_train)
    exact = 0
    totals = np.zeros((2, 2), dtype=np.int64)
    for reply in replies:
        live = (reply.draft_n, reply.draft_n_accepted)
        cycles = worker.live_shapes(
            reply.prompt,
            reply.tokens,
            profile=profile,
            n_max=setting.n_max,
            n_min=setting.n_min,
            p_min=setting.p_min,
            n_predict=reply.n_predict,
            server_context=slot,
            width=batch,
        )
        replay = worker.replay(
            reply.prompt,
            reply.tokens,
            rollout_steps=setting.n_max if setting.p_min > 0 else 0,
            rollout_stop_below=setting.p_min,
        )
        positions = positions_of(
            replay,
            np.array(reply.tokens, np.int32),
            prompt=len(reply.prompt),
            reply=len(reply.tokens),
            eog=draft.eog,
            rollout_floor=setting.p_min,
            n_predict=reply.n_predict,
            context=slot,
        )
        run = simulate(positions, setting, profile)
        exact += (cycles.draft_n, cycles.draft_n_accepted) == live
        totals += [live, (run.draft_n, run.draft_n_accepted)]
    return RecountOutcome(len(replies), exact, *totals.ravel().tolist())


def output_check(
    outcome: CompareOutcome,
    control: ControlOutcome | None = None,
    not_controlled: str | None = None,
) -> OutputCheck:
    """Class each difference as a near tie, material, or unknown (no gap could be had).

    ``not_controlled``: why there is no ``control``.
    """
    line = control.near_tie_gap if control is not None else NEAR_TIE_GAP
    gaps = [abs(d.gap) if d.gap is not None else d.gap_at_least for d in outcome.differences]
    known = [g for g in gaps if g is not None]
    near = sum(g <= line for g in known)
    tried = [d.without_draft for d in outcome.differences if d.without_draft is not None]
    return OutputCheck(
        replies=outcome.replies,
        identical=outcome.identical,
        near_ties=near,
        material=len(known) - near,
        unknown=len(gaps) - len(known),
        near_tie_gap=line,
        largest_gap=max(known, default=None),
        first_positions=tuple(d.position for d in outcome.differences),
        without_draft=sum(tried),
        without_draft_tried=len(tried),
        gap_is_measured=control is not None,
        control=control,
        not_controlled=not_controlled or outcome.not_controlled,
    )
