"""Is our accounting the engine's? A short live run, recounted from its own tokens.

Counts are called exact only where this has passed for the engine build at hand
(docs/internals/scoring.md#recount).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cook.engines.base import DraftSettings
from cook.record.outcomes import SelfCheckOutcome
from cook.scoring.simulate import Profile, positions_of, simulate

if TYPE_CHECKING:
    from cook.engines.worker.messages import ModelInfo
    from cook.engines.worker.worker import Worker


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
) -> SelfCheckOutcome:
    """Recount ``replies`` with the loaded ``draft``. ``context``: the server's; ``batch`` its -b.

    The worker must have loaded the draft as the server did: context, ubatch, threads, KV types.
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
    return SelfCheckOutcome(len(replies), exact, *totals.ravel().tolist())
