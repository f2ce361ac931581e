"""Replayed acceptance of every draft, finalist or not, for later records to be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

from cook.build.forecast import Forecaster
from cook.build.layout import ForecastPlan
from cook.engines.base import DraftSettings
from cook.graph.execute import Outcomes
from cook.record.measured import ReplayedPrompts
from cook.scoring.simulate import simulate

DIGITS = 16
"""Of a reply's SHA-256: enough to tell two texts of one prompt apart."""


def replayed(plans: Sequence[ForecastPlan], outcomes: Outcomes) -> Iterator[ReplayedPrompts]:
    """Every draft of which anything was replayed."""
    for plan in plans:
        forecaster = Forecaster(plan, outcomes)
        settings = DraftSettings(_length(plan))
        texts: dict[str, str] = {}
        for draft in plan.drafts:
            found = [
                (head, simulate(text, settings, plan.profile))
                for head, text in forecaster.texts(draft)
            ]
            if found and draft.draft.after is None:
                texts = texts or {
                    reply.head.id: sha256(reply.tokens.tobytes()).hexdigest()[:DIGITS]
                    for reply in forecaster.trace
                }
                yield ReplayedPrompts(
                    engine=plan.engine.name,
                    draft=draft.draft.name,
                    cache_type=draft.cache_type,
                    n_max=settings.n_max,
                    ids=tuple(head.id for head, _ in found),
                    categories=tuple(head.category for head, _ in found),
                    drafted=tuple(run.draft_n for _, run in found),
                    accepted=tuple(run.draft_n_accepted for _, run in found),
                    texts=tuple(texts[head.id] for head, _ in found),
                )


def _length(plan: ForecastPlan) -> int:
    """The middle one of the recipe's lengths."""
    lengths = sorted({settings.n_max for settings in plan.settings})
    return lengths[len(lengths) // 2]
