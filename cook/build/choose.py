"""The pick: the candidate that maximizes what the recipe asks, among those that qualify.

By live runs alone; ``cook.build.confirm`` picks by prediction, which live runs confirm.

What was not measured cannot win. A rival whose paired difference from the best could be nothing
(the interval of the ratio holds 1) is a tie, and ties go to the smaller file; no draft has no
file at all, so it wins a tie with any draft.

The predicted choice, before anything is confirmed live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cook.record.measured import Figures, Interval
from cook.record.record import Candidate, Draft, Excluded, Pick

Maximize = Literal["end_to_end_speed", "decode_speed", "acceptance", "acceptance_length"]


@dataclass(frozen=True)
class Chosen:
    """Chosen on ``prompts`` prompts by predicted figures.

    ``ranking`` best first; ``ties`` could not be told from the best, and the choice is the
    smallest file among them; ``probability`` of being best, by resampling prompts; ``margin`` is
    what the best rival may gain on the leader at the confidence asked for (None: too few
    prompts), which decides the question when it is at most ``within``.
    """

    name: str | None
    ranking: tuple[str, ...]
    ties: tuple[str, ...]
    probability: Mapping[str, float]
    margin: float | None
    within: float
    excluded: tuple[Excluded, ...]
    prompts: int

    @property
    def decided(self) -> bool:
        """Whether the leader is within ``within`` of the best, at the confidence asked for."""
        return self.margin is not None and self.margin <= self.within


def figure_of(found: Figures, maximize: Maximize) -> float:
    """The figure to maximize; 0 where it does not exist."""
    if maximize == "end_to_end_speed":
        return found.end_to_end_speed
    if maximize == "decode_speed":
        return found.decode_speed
    if maximize == "acceptance":
        return found.acceptance_rate or 0.0
    return found.acceptance_length or 0.0


GIB = 1 << 30
RatioInterval = Callable[[Candidate, Candidate], Interval | None]
"""Interval of value(first)/value(second) over the same prompts; None where it can't be had."""

UNITS = {
    "end_to_end_speed": "t/s end to end",
    "decode_speed": "t/s decode",
    "acceptance": "acceptance",
    "acceptance_length": "tokens a cycle",
}


@dataclass(frozen=True)
class Limits:
    """``subject_to`` of a recipe; None means no limit."""

    size_gib: float | None = None
    memory_gib: float | None = None
    bpw: float | None = None
    perplexity_ratio: float | None = None
    kld: float | None = None


def value_of(candidate: Candidate, maximize: str) -> float | None:
    """The maximized figure, or None where it was not measured or does not exist."""
    live = candidate.live
    if live is None or not live.tokens:
        return None
    if maximize == "end_to_end_speed":
        return live.end_to_end_speed
    if maximize == "decode_speed":
        return live.decode_speed
    if maximize == "acceptance":
        return live.acceptance_rate
    return live.acceptance_length


def pick(
    candidates: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    *,
    maximize: str,
    limits: Limits,
    confidence: float,
    ratio_interval: RatioInterval,
) -> Pick:
    """Choose; the result says why in one sentence, what tied, and what could not win."""
    excluded: list[Excluded] = []
    runners: list[tuple[float, Candidate]] = []
    for candidate in candidates:
        value = value_of(candidate, maximize)
        reason = _disqualified(candidate, drafts, limits)
        if reason is None and value is None:
            reason = candidate.reason or _no_value(candidate, maximize)
        if reason is not None or value is None:
            excluded.append(Excluded(candidate.name, reason or "not measured"))
        else:
            runners.append((value, candidate))
    runners.sort(key=lambda pair: -pair[0])
    ranking = tuple(c.name for _, c in runners)
    if not runners:
        return Pick(
            candidate=None,
            sentence="nothing qualifies: "
            + "; ".join(f"{e.candidate}: {e.reason}" for e in excluded[:4]),
            maximize=maximize,
            confidence=confidence,
            value=None,
            ranking=(),
            ties=(),
            excluded=tuple(excluded),
        )
    best = runners[0][1]
    tied = [best]
    for _, candidate in runners[1:]:
        interval = ratio_interval(candidate, best)
        if interval is not None and interval.high >= 1:
            tied.append(candidate)
    winner = min(tied, key=lambda c: (_file_bytes(c, drafts), ranking.index(c.name)))
    value = value_of(winner, maximize)
    return Pick(
        candidate=winner.name,
        sentence=sentence_of(winner, best, tied, drafts, maximize, confidence),
        maximize=maximize,
        confidence=confidence,
        value=value,
        ranking=ranking,
        ties=tuple(c.name for c in tied if c is not winner),
        excluded=tuple(excluded),
    )


def _disqualified(candidate: Candidate, drafts: Mapping[str, Draft], limits: Limits) -> str | None:
    return over_limits(drafts[candidate.draft], limits) if candidate.draft is not None else None


def over_limits(draft: Draft, limits: Limits) -> str | None:
    """The first limit that ``draft`` does not keep, or could not be measured against."""
    quality = draft.quality
    checks = (
        ("size_gib", limits.size_gib, _gib(draft.file_bytes), None),
        ("memory_gib", limits.memory_gib, _gib(draft.memory_bytes), draft.memory_reason),
        ("bpw", limits.bpw, draft.bpw, None),
        (
            "perplexity_ratio",
            limits.perplexity_ratio,
            quality.perplexity_ratio if quality else None,
            draft.quality_reason,
        ),
        ("kld", limits.kld, quality.mean_kld if quality else None, draft.quality_reason),
    )
    for name, limit, value, reason in checks:
        if limit is None:
            continue
        if value is None:
            return f"{name} is limited to {limit:g} but was not measured" + (
                f" ({reason})" if reason else ""
            )
        if value > limit:
            return f"{name} {value:.4g} is over the limit of {limit:g}"
    return None


def _no_value(candidate: Candidate, maximize: str) -> str:
    if candidate.draft is None:
        return f"no draft has no {UNITS[maximize]}"
    return "not measured"


def sentence_of(
    winner: Candidate,
    best: Candidate,
    tied: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    maximize: str,
    confidence: float,
) -> str:
    """Why ``winner`` is the pick, ``best`` being first by the figure and ``tied`` as good."""
    value = value_of(winner, maximize)
    assert value is not None, "a winner has a value"
    shown = f"{value:.1%}" if maximize == "acceptance" else f"{value:.2f}"
    text = f"{winner.name}: {shown} {UNITS[maximize]}"
    if winner.draft is not None and winner.live is not None:
        if maximize == "decode_speed" and winner.decode_speedup is not None:
            text += f", {winner.decode_speedup:.2f}x no draft, end to end"
        elif winner.speedup is not None:
            text += ","
        if winner.speedup is not None:
            text += f" {winner.speedup:.2f}x" + ("" if maximize == "decode_speed" else " no draft")
            if winner.speedup_interval:
                low, high = winner.speedup_interval.low, winner.speedup_interval.high
                text += f" ({confidence:.0%}: {low:.2f} to {high:.2f})"
        rate = winner.live.acceptance_rate
        if rate is not None and maximize != "acceptance":
            text += f", acceptance {rate:.1%} ({winner.live.accepted}/{winner.live.drafted})"
    if winner.draft is None:
        text += "; none of the drafts that qualify is surely better" if len(tied) == 1 else ""
    others = [c.name for c in tied if c is not winner]
    if others:
        text += f"; not told apart from {', '.join(others[:3])}"
        if len(others) > 3:
            text += f" and {len(others) - 3} more"
        text += (
            ", and it needs no draft file"
            if winner.draft is None
            else (
                ", and it is the smallest file"
                if _smallest(winner, tied, drafts)
                else ", and it scored highest of the smallest file"
            )
        )
    return text + "."


def _smallest(winner: Candidate, tied: Sequence[Candidate], drafts: Mapping[str, Draft]) -> bool:
    mine = _file_bytes(winner, drafts)
    return all(_file_bytes(c, drafts) > mine for c in tied if c is not winner)


def _file_bytes(candidate: Candidate, drafts: Mapping[str, Draft]) -> float:
    if candidate.draft is None:
        return 0.0
    size = drafts[candidate.draft].file_bytes
    return float(size) if size is not None else float("inf")


def _gib(size_bytes: int | None) -> float | None:
    return size_bytes / GIB if size_bytes is not None else None
