"""The pick by prediction, held against the live runs of the finalists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cook.build.choose import Chosen, RatioInterval, sentence_of, value_of
from cook.record import record
from cook.record.record import Candidate, Draft, Pick


def confirm(
    choice: Chosen,
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
        best=choice.ranking[0] if choice.ranking else None,
    )
    if chosen is None:
        return _unconfirmed(choice, kept, candidates, maximize, confidence)
    winner, objection = _held_against(chosen, list(live.values()), maximize, ratio_interval)
    text = sentence_of(winner, chosen, [winner], drafts, maximize, confidence).rstrip(".")
    if objection:
        text += f"; predicted was {chosen.name}, but {objection}"
    else:
        text += f"; {_certainty(choice, chosen.draft, confidence)}; confirmed live"
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


def _certainty(choice: Chosen, draft: str | None, confidence: float) -> str:
    """How sure the prediction was, for a choice of the file ``draft`` (None is no draft)."""
    if choice.margin is None:
        return "predicted best (too few prompts to say how surely)"
    best = choice.ranking[0]
    if choice.name != best:
        file = "needs no file" if draft is None else "is the smallest such file"
        return f"predicted not to be told from {best}, the best, at {confidence:.0%}, and {file}"
    chance = choice.probability.get(best)
    sure = f"(at {confidence:.0%}"
    sure += f"; probability of being best {chance:.0%})" if chance else ")"
    if choice.decided:
        return f"predicted best within {choice.within:.0%} {sure}"
    text = f"predicted best, but a rival may be up to {choice.margin:.1%} better {sure}"
    if choice.ties:
        more = f" and {len(choice.ties) - 1} more" if len(choice.ties) > 1 else ""
        text += f": {choice.ties[0]}{more}"
    return text


def _unconfirmed(
    choice: Chosen,
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
        found = next((c for c in candidates if c.name == choice.name), None)
        draft, reason = (found.draft, found.reason) if found else (None, None)
        sentence = (
            f"{choice.name}: {_certainty(choice, draft, confidence)}; "
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
