"""From requests to figures: sums of tokens over sums of time, weighted by category."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cook.errors import InternalError
from cook.record.measured import Figures, OutputCheck, PromptFigures
from cook.record.outcomes import CompareOutcome, ControlOutcome
from cook.record.prompt_runs import PromptRun

NEAR_TIE_GAP = 0.15
"""Logit gap up to which batched verification is known to flip greedy choices.

Used only where no control run measured this engine's own: the largest gap reported for pure
kernel noise (docs/internals/scoring.md#same-output-as-without-a-draft).
"""


def figures(runs: Sequence[PromptRun], weights: Mapping[str, float] | None = None) -> Figures:
    """Figures over ``runs``; ratios weighted by category where ``weights`` are given.

    A weighted speed is the token-weighted harmonic mean: with share w of the tokens in each
    category, tokens per second = sum w / sum (w / speed of that category).
    """
    if not runs:
        raise InternalError("figures over no requests")
    tokens = sum(r.predicted_n - 1 for r in runs)
    decode_ms = sum(r.predicted_ms for r in runs)
    wall_ms = sum(r.wall_ms for r in runs)
    drafting = [r for r in runs if r.draft_n is not None]
    moved = [r.draft_prompt_ms for r in runs if r.draft_prompt_ms is not None]
    accepted = sum(r.draft_n_accepted or 0 for r in drafting) if drafting else None
    return Figures(
        requests=len(runs),
        prompt_tokens=sum(r.prompt_n for r in runs),
        tokens=tokens,
        decode_ms=decode_ms,
        wall_ms=wall_ms,
        drafted=sum(r.draft_n or 0 for r in drafting) if drafting else None,
        accepted=accepted,
        cycles=tokens - accepted if accepted is not None else None,
        decode_speed=_speed(runs, weights, lambda r: r.predicted_ms),
        end_to_end_speed=_speed(runs, weights, lambda r: r.wall_ms),
        weighted_acceptance_rate=_weighted(
            drafting, weights, lambda r: r.draft_n_accepted or 0, lambda r: r.draft_n or 0
        ),
        weighted_acceptance_length=_weighted(
            drafting, weights, lambda r: r.predicted_n - 1, lambda r: r.cycles or 0
        ),
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
    blocks = list(dict.fromkeys(r.block for r in runs))
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
        start=tuple(blocks.index(r.block) for r in runs) if live else (),
    )


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


def _speed(
    runs: Sequence[PromptRun],
    weights: Mapping[str, float] | None,
    time_ms: Callable[[PromptRun], float],
) -> float | None:
    """Tokens after the first a second; None where no reply goes on after it, or none weighs."""
    if not any(r.predicted_n > 1 for r in runs):
        return None  # nothing came after the first tokens, which the prompts' logits give
    if not weights:
        return 1000 * sum(r.predicted_n - 1 for r in runs) / sum(time_ms(r) for r in runs)
    seconds_per_token: dict[str, tuple[int, float]] = {}
    for run in runs:
        tokens, ms = seconds_per_token.get(run.category, (0, 0.0))
        seconds_per_token[run.category] = (tokens + run.predicted_n - 1, ms + time_ms(run))
    shares = {c: weights.get(c, 1.0) for c, (tokens, _) in seconds_per_token.items() if tokens}
    time = sum(w * seconds_per_token[c][1] / seconds_per_token[c][0] for c, w in shares.items())
    return 1000 * sum(shares.values()) / time if time else None


def _weighted(
    runs: Sequence[PromptRun],
    weights: Mapping[str, float] | None,
    top: Callable[[PromptRun], int],
    bottom: Callable[[PromptRun], int],
) -> float | None:
    """Ratio of counts weighted by category; None without weights, or where nothing weighs."""
    if not weights:
        return None
    tokens: dict[str, int] = {}
    for run in runs:
        tokens[run.category] = tokens.get(run.category, 0) + run.predicted_n - 1
    shares = {c: weights.get(c, 1.0) / n for c, n in tokens.items() if n}
    counted = [(shares[r.category], r) for r in runs if r.category in shares]
    below = sum(share * bottom(run) for share, run in counted)
    return sum(share * top(run) for share, run in counted) / below if below else None
