"""From requests to figures: ratios of two sums, weighted by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cook.errors import InternalError
from cook.record.measured import Figures, PromptFigures
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun


def request_weights(runs: Sequence[PromptRun], weights: Mapping[str, float] | None) -> list[float]:
    """What each request counts for: 1, or its category's weight over the tokens of that category,
    so that a speed is the harmonic mean of the categories' (0 where these have no tokens)."""
    if not weights:
        return [1.0] * len(runs)
    tokens: Counter[str] = Counter()
    for run in runs:
        tokens[run.category] += run.predicted_n - 1
    share = {name: weights.get(name, 1.0) / count for name, count in tokens.items() if count}
    return [share.get(run.category, 0.0) for run in runs]


def ratio(
    runs: Sequence[PromptRun], objective: Objective, weights: Mapping[str, float] | None = None
) -> float | None:
    """``objective`` of ``runs``, a speed in tokens a millisecond: a ratio of sums over requests.
    None where a request has no such figure (no draft has no acceptance), or nothing counts."""
    top = bottom = 0.0
    for run, weight in zip(runs, request_weights(runs, weights), strict=True):
        part = objective.parts(run)
        if part is None:
            return None
        top, bottom = top + weight * part[0], bottom + weight * part[1]
    return top / bottom if bottom > 0 else None


def figures(runs: Sequence[PromptRun], weights: Mapping[str, float] | None = None) -> Figures:
    """Figures over ``runs``; ratios weighted by category where ``weights`` are given."""
    if not runs:
        raise InternalError("figures over no requests")
    tokens = sum(r.predicted_n - 1 for r in runs)
    drafting = [r for r in runs if r.draft_n is not None]
    moved = [r.draft_prompt_ms for r in runs if r.draft_prompt_ms is not None]
    accepted = sum(r.draft_n_accepted or 0 for r in drafting) if drafting else None
    speeds = [ratio(runs, o, weights) for o in (Objective.DECODE_SPEED, Objective.END_TO_END_SPEED)]
    decode, whole = (1000 * speed if speed else None for speed in speeds)
    counts = [
        ratio(drafting, o, weights) if weights else None
        for o in (Objective.ACCEPTANCE, Objective.ACCEPTANCE_LENGTH)
    ]
    return Figures(
        requests=len(runs),
        prompt_tokens=sum(r.prompt_n for r in runs),
        tokens=tokens,
        decode_ms=sum(r.predicted_ms for r in runs),
        wall_ms=sum(r.wall_ms for r in runs),
        drafted=sum(r.draft_n or 0 for r in drafting) if drafting else None,
        accepted=accepted,
        cycles=tokens - accepted if accepted is not None else None,
        decode_speed=decode,
        end_to_end_speed=whole,
        weighted_acceptance_rate=counts[0],
        weighted_acceptance_length=counts[1],
        prompt_ms=sum(r.prompt_ms for r in runs),
        draft_prompt_ms=sum(moved) if moved else None,
    )


def by_category(runs: Sequence[PromptRun]) -> dict[str, Figures]:
    """Figures of each category, in the order of first appearance."""
    groups: dict[str, list[PromptRun]] = {}
    for run in runs:
        groups.setdefault(run.category, []).append(run)
    return {category: figures(group) for category, group in groups.items()}


def by_prompt(runs: Sequence[PromptRun], *, live: bool = False) -> PromptFigures:
    """The counts and times of each request, times to the microsecond; ``live`` ones with their
    block, their order in it, and their server's start."""
    starts = {block: place for place, block in enumerate(dict.fromkeys(r.block for r in runs))}
    return PromptFigures(
        ids=tuple(r.id for r in runs),
        categories=tuple(r.category for r in runs),
        tokens=tuple(r.predicted_n - 1 for r in runs),
        decode_ms=tuple(round(r.predicted_ms, 3) for r in runs),
        wall_ms=tuple(round(r.wall_ms, 3) for r in runs),
        drafted=tuple(r.draft_n for r in runs),
        accepted=tuple(r.draft_n_accepted for r in runs),
        prompt_ms=tuple(round(r.prompt_ms, 3) for r in runs),
        block=tuple(r.block for r in runs) if live else (),
        order=tuple(r.order for r in runs) if live else (),
        start=tuple(starts[r.block] for r in runs) if live else (),
    )
