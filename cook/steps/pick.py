"""The pick: the candidate that maximizes what the recipe asks, among those that qualify.

By live runs alone (:func:`pick`), or by prediction that live runs confirm (:func:`confirm`).

What was not measured cannot win. A rival whose paired difference from the best could be nothing
(the interval of the ratio holds 1) is a tie, and ties go to the smaller file; no draft has no
file at all, so it wins a tie with any draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cook.report import record
from cook.report.record import Candidate, Draft, Excluded, Interval, Pick
from cook.steps.choose import Choice

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
        sentence=_sentence(winner, best, tied, drafts, maximize, confidence),
        maximize=maximize,
        confidence=confidence,
        value=value,
        ranking=ranking,
        ties=tuple(c.name for c in tied if c is not winner),
        excluded=tuple(excluded),
    )


def confirm(
    choice: Choice,
    candidates: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    *,
    maximize: str,
    confidence: float,
    ratio_interval: RatioInterval,
) -> Pick:
    """The predicted choice, held against the live runs of the finalists.

    It stands unless a finalist is surely faster live (the interval of their ratio lies above 1),
    or no draft is at least as fast: then the live figures decide, and the sentence says so.
    """
    live = {c.name: c for c in candidates if value_of(c, maximize) is not None}
    chosen = live.get(choice.name) if choice.name else None
    kept = record.Choice(
        candidate=choice.name,
        prompts=choice.prompts,
        probability=choice.probability.get(choice.name) if choice.name else None,
        margin=choice.margin,
        within=choice.within,
        decided=choice.decided,
        ties=choice.ties,
        confirmed=None,
    )
    if chosen is None:
        return _unconfirmed(choice, kept, candidates, maximize, confidence)
    winner, objection = _held_against(chosen, list(live.values()), maximize, ratio_interval)
    text = _sentence(winner, chosen, [winner], drafts, maximize, confidence).rstrip(".")
    if objection:
        text += f"; predicted was {chosen.name}, but {objection}"
    else:
        text += f"; {_certainty(kept, confidence)}, confirmed live"
        if choice.ties:
            others = f"{choice.ties[0]}" + (
                f" and {len(choice.ties) - 1} more" if len(choice.ties) > 1 else ""
            )
            text += f"; predicted not to be told apart from {others}, and the smallest file"
    return Pick(
        candidate=winner.name,
        sentence=text + ".",
        maximize=maximize,
        confidence=confidence,
        value=value_of(winner, maximize),
        ranking=(winner.name, *(n for n in choice.ranking if n != winner.name)),
        # What tied with a prediction that did not stand ties with nobody.
        ties=() if objection else tuple(n for n in choice.ties if n in live),
        excluded=choice.excluded,
        choice=replace(kept, confirmed=not objection),
    )


def _held_against(
    chosen: Candidate,
    live: Sequence[Candidate],
    maximize: str,
    ratio_interval: RatioInterval,
) -> tuple[Candidate, str | None]:
    """The winner after the live runs, and why it is not the chosen one."""

    def value(candidate: Candidate) -> float:
        found = value_of(candidate, maximize)
        assert found is not None, "only candidates with a figure are compared"
        return found

    surely = []
    for rival in live:
        interval = ratio_interval(rival, chosen) if rival is not chosen else None
        if interval is not None and interval.low > 1:
            surely.append((value(rival), rival, interval))
    if surely:
        _, rival, interval = max(surely, key=lambda found: found[0])
        return rival, (
            f"live {rival.name} is {interval.low:.2f} to {interval.high:.2f} times as good"
        )
    bare = max((c for c in live if c.draft is None), key=value, default=None)
    if chosen.draft is not None and bare is not None and value(bare) >= value(chosen):
        return bare, f"live it is no faster than {bare.name}"
    return chosen, None


def _certainty(choice: record.Choice, confidence: float) -> str:
    """How sure the prediction was."""
    if choice.margin is None:
        return "predicted best (too few prompts to say how surely)"
    chance = f", probability of being best {choice.probability:.0%}" if choice.probability else ""
    if choice.decided:
        return f"predicted best within {choice.within:.0%} at {confidence:.0%}{chance}"
    return (
        f"predicted best{chance}, undecided: a rival may gain {choice.margin:.1%} "
        f"at {confidence:.0%}; more prompts would tell"
    )


def _unconfirmed(
    choice: Choice,
    kept: record.Choice,
    candidates: Sequence[Candidate],
    maximize: str,
    confidence: float,
) -> Pick:
    """Nothing qualifies, or the choice has no live figures."""
    if choice.name is None:
        why = "; ".join(f"{e.candidate}: {e.reason}" for e in choice.excluded[:4])
        sentence = f"nothing qualifies: {why}"
    else:
        reason = next((c.reason for c in candidates if c.name == choice.name), None)
        sentence = (
            f"{choice.name}: {_certainty(kept, confidence)}; "
            f"not confirmed live: {reason or 'no live figures'}."
        )
    return Pick(
        candidate=choice.name,
        sentence=sentence,
        maximize=maximize,
        confidence=confidence,
        value=None,
        ranking=choice.ranking,
        ties=choice.ties,
        excluded=choice.excluded,
        choice=kept,
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


def _sentence(
    winner: Candidate,
    best: Candidate,
    tied: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    maximize: str,
    confidence: float,
) -> str:
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
        text += "; no draft that qualifies is faster" if len(tied) == 1 else ""
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
