"""How fast a draft decodes alone, from the timings that its forecasts rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cook.build.layout import DraftPlan, Layout
    from cook.graph.execute import Outcomes


@dataclass(frozen=True)
class DraftSpeed:
    """Single-token decodes a second after ``depth`` tokens, on the machine of the record."""

    tokens_per_s: float
    depth: int


def draft_speed(
    menu: Layout, plan: DraftPlan, outcomes: Outcomes
) -> tuple[DraftSpeed | None, str | None]:
    """The speed, or None and why there is none; the first KV cache type stands for all."""
    if menu.forecast is None:
        return None, "not timed alone: scored by live runs only"
    timed = next((d for d in menu.forecast.drafts if d.draft.name == plan.name), None)
    if timed is None:
        return None, "not timed alone"
    curve = outcomes.result(timed.curves[0])
    if curve is None:
        failure = outcomes.failures.get(timed.curves[0].key)
        return None, failure.error.message if failure else "not run"
    seconds = dict(zip(curve.widths, curve.seconds[0], strict=True)).get(1)
    if not seconds:
        return None, "no single-token decode was timed"
    return DraftSpeed(1 / seconds, curve.depths[0]), None
