"""The choice: the candidate that maximizes what the recipe asks, among those that qualify.

Where drafts are replayed it is made by :func:`choose` from forecasts, and :func:`confirm` holds
it against the live runs of the finalists. By live runs alone :func:`pick` makes it.

What was not measured cannot win. A rival whose paired difference from the best could be nothing
(the interval of the ratio holds 1) is a tie, and ties go to the smaller file; no draft has no
file at all, so it wins a tie with any draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cook.build.forecast import Forecast
from cook.record import record
from cook.record.measured import Interval
from cook.record.objective import Objective
from cook.record.record import Candidate, CandidateKey, Draft, Excluded, Pick
from cook.scoring.figures import figures
from cook.scoring.intervals import FEWEST_PROMPTS, SEED, paired
from cook.scoring.statistics import standings
from cook.units import plural

GIB = 1 << 30
WITHIN = 0.01
"""The stopping rule: the leader is within this share of the best, at the confidence asked for."""

RatioInterval = Callable[[Candidate, Candidate], Interval | None]
"""Interval of value(first)/value(second) over the same prompts; None where it can't be had."""


@dataclass(frozen=True)
class Limits:
    """``subject_to`` of a recipe; None means no limit."""

    size_gib: float | None = None
    memory_gib: float | None = None
    bpw: float | None = None
    perplexity_ratio: float | None = None
    kld: float | None = None


@dataclass(frozen=True)
class Chosen:
    """Chosen on ``prompts`` prompts by predicted figures.

    ``ranking`` best first; ``ties`` could not be told from the best, and the choice is the
    smallest file among them; ``probability`` of being best, by resampling prompts; ``margin`` is
    what the best rival may gain on the leader at the confidence asked for (None: too few
    prompts), which decides the question when it is at most ``within``. ``names`` are for people.
    """

    key: CandidateKey | None
    ranking: tuple[CandidateKey, ...]
    ties: tuple[CandidateKey, ...]
    probability: Mapping[CandidateKey, float]
    margin: float | None
    within: float
    excluded: tuple[Excluded, ...]
    prompts: int
    names: Mapping[CandidateKey, str]

    @property
    def decided(self) -> bool:
        """Whether the leader is within ``within`` of the best, at the confidence asked for."""
        return self.margin is not None and self.margin <= self.within

    @property
    def name(self) -> str | None:
        return self.names[self.key] if self.key is not None else None

    def named(self, keys: Sequence[CandidateKey]) -> tuple[str, ...]:
        return tuple(self.names[key] for key in keys)


def choose(
    forecasts: Sequence[Forecast],
    objective: Objective,
    confidence: float,
    weights: Mapping[str, float] | None,
    excluded: Sequence[Excluded],
    file_bytes: Mapping[str, int | None],
    *,
    timing_sd: float = 0.0,
) -> Chosen:
    """The predicted choice; of those close to the best, the smallest file.

    ``excluded`` may not win and have no forecast. ``file_bytes`` of each draft, None where it is
    not known, which wins no tie. ``timing_sd``: spread of a draft's log-speed that is owed to its
    timing; acceptance has none.
    """
    without_figure: list[Excluded] = []
    runners: list[Forecast] = []
    values: dict[CandidateKey, float] = {}
    for forecast in forecasts:
        counted = figures(forecast.runs, weights)
        value = objective.of(counted)
        if value is not None:
            runners.append(forecast)
            values[forecast.key] = value
        else:
            without_figure.append(Excluded(forecast.name, objective.why_none(counted)))
    ranking = tuple(sorted(values, key=lambda key: -values[key]))
    chosen = Chosen(
        key=ranking[0] if ranking else None,
        ranking=ranking,
        ties=(),
        probability={},
        margin=None,
        within=WITHIN,
        excluded=(*excluded, *without_figure),
        prompts=0,
        names={f.key: f.name for f in runners},
    )
    measured = paired({f.key: f.runs for f in runners}, objective, weights) if runners else None
    if measured is None or measured.prompts < FEWEST_PROMPTS:
        return chosen
    # Settings of one draft are priced with the same measured times, so they err together.
    files = {(f.key.draft, f.key.cache_type): number for number, f in enumerate(runners)}
    standing = standings(
        measured,
        np.random.default_rng(SEED),
        epsilon=WITHIN,
        confidence=confidence,
        timing_sd=timing_sd if objective.timed else 0.0,
        timed_together=[files[f.key.draft, f.key.cache_type] for f in runners],
    )

    def place(key: CandidateKey) -> tuple[float, int]:
        size = file_bytes[key.draft] if key.draft is not None else 0
        return float("inf") if size is None else size, ranking.index(key)

    key = min(standing.close, key=place)
    return replace(
        chosen,
        key=key,
        ties=tuple(k for k in ranking if k in standing.ties and k != key),
        probability=standing.probability,
        margin=standing.margin,
        prompts=measured.prompts,
    )


def rank(
    forecasts: Sequence[Forecast], objective: Objective, weights: Mapping[str, float] | None
) -> list[Forecast]:
    """Drafting candidates, best first by the predicted figure; what has none comes last."""

    def place(forecast: Forecast) -> float:
        value = objective.of(figures(forecast.runs, weights))
        return float("inf") if value is None else -value

    return sorted((f for f in forecasts if f.key.draft is not None), key=place)


def value_of(candidate: Candidate, objective: Objective) -> float | None:
    """The maximized figure as measured live; None where it was not, or does not exist."""
    return objective.of(candidate.live) if candidate.live is not None else None


def confirm(
    choice: Chosen,
    candidates: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    *,
    objective: Objective,
    confidence: float,
    ratio_interval: RatioInterval,
) -> Pick:
    """The predicted choice, held against the live runs of the finalists.

    It stands unless a finalist is surely faster live (the interval of their ratio lies above 1),
    or no draft is at least as fast: then the live figures decide, and the sentence says so.
    """
    live = {c.key: c for c in candidates if value_of(c, objective) is not None}
    chosen = live.get(choice.key) if choice.key else None
    kept = record.Choice(
        candidate=choice.name,
        prompts=choice.prompts,
        probability=choice.probability.get(choice.key) if choice.key else None,
        margin=choice.margin,
        within=choice.within,
        decided=choice.decided,
        ties=choice.named(choice.ties),
        confirmed=None,
        best=choice.names[choice.ranking[0]] if choice.ranking else None,
    )
    if chosen is None:
        return _unconfirmed(choice, kept, candidates, objective, confidence)
    winner, objection = _held_against(chosen, list(live.values()), objective, ratio_interval)
    text = sentence_of(winner, chosen, [winner], drafts, objective, confidence).rstrip(".")
    if objection:
        text += f"; predicted was {chosen.name}, but {objection}"
    else:
        text += f"; {_certainty(choice, confidence)}; confirmed live"
    return Pick(
        candidate=winner.name,
        sentence=text + ".",
        maximize=objective.value,
        confidence=confidence,
        value=value_of(winner, objective),
        ranking=(winner.name, *choice.named([k for k in choice.ranking if k != winner.key])),
        # What tied with a prediction that did not stand ties with nobody.
        ties=() if objection else choice.named([k for k in choice.ties if k in live]),
        excluded=choice.excluded,
        choice=replace(kept, confirmed=not objection),
    )


def _held_against(
    chosen: Candidate,
    live: Sequence[Candidate],
    objective: Objective,
    ratio_interval: RatioInterval,
) -> tuple[Candidate, str | None]:
    """The winner after the live runs, and why it is not the chosen one."""

    def value(candidate: Candidate) -> float:
        found = value_of(candidate, objective)
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


def _certainty(choice: Chosen, confidence: float) -> str:
    """How sure the prediction was."""
    if choice.margin is None:
        return "predicted best (too few prompts to say how surely)"
    best = choice.ranking[0]
    if choice.key != best:
        file = "is the smallest such file" if choice.key and choice.key.draft else "needs no file"
        leader = choice.names[best]
        return (
            f"predicted not to be told from {leader}, the best, at {confidence:.0%} on "
            f"{plural(choice.prompts, 'prompt')}, and {file}"
        )
    chance = choice.probability.get(best)
    sure = f"(at {confidence:.0%} on {plural(choice.prompts, 'prompt')}"
    sure += f"; probability of being best {chance:.0%})" if chance else ")"
    if choice.decided:
        return f"predicted best within {choice.within:.0%} {sure}"
    text = f"predicted best, but a rival may be up to {choice.margin:.1%} better {sure}"
    if choice.ties:
        more = f" and {len(choice.ties) - 1} more" if len(choice.ties) > 1 else ""
        text += f": {choice.names[choice.ties[0]]}{more}"
    return text


def _unconfirmed(
    choice: Chosen,
    kept: record.Choice,
    candidates: Sequence[Candidate],
    objective: Objective,
    confidence: float,
) -> Pick:
    """Nothing qualifies, or the choice has no live figures."""
    if choice.key is None:
        why = "; ".join(f"{e.candidate}: {e.reason}" for e in choice.excluded[:4])
        sentence = f"nothing qualifies: {why}"
    else:
        reason = next((c.reason for c in candidates if c.key == choice.key), None)
        sentence = (
            f"{choice.name}: {_certainty(choice, confidence)}; "
            f"not confirmed live: {reason or 'no live figures'}."
        )
    return Pick(
        candidate=choice.name,
        sentence=sentence,
        maximize=objective.value,
        confidence=confidence,
        value=None,
        ranking=choice.named(choice.ranking),
        ties=choice.named(choice.ties),
        excluded=choice.excluded,
        choice=kept,
    )


def pick(
    candidates: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    *,
    objective: Objective,
    limits: Limits,
    confidence: float,
    ratio_interval: RatioInterval,
) -> Pick:
    """Choose; the result says why in one sentence, what tied, and what could not win."""
    excluded: list[Excluded] = []
    runners: list[tuple[float, Candidate]] = []
    for candidate in candidates:
        value = value_of(candidate, objective)
        reason = _disqualified(candidate, drafts, limits)
        if reason is None and value is None:
            reason = candidate.reason or (
                objective.why_none(candidate.live) if candidate.live else "not measured"
            )
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
            maximize=objective.value,
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
    value = value_of(winner, objective)
    return Pick(
        candidate=winner.name,
        sentence=sentence_of(winner, best, tied, drafts, objective, confidence),
        maximize=objective.value,
        confidence=confidence,
        value=value,
        ranking=ranking,
        ties=tuple(c.name for c in tied if c is not winner),
        excluded=tuple(excluded),
    )


def _disqualified(candidate: Candidate, drafts: Mapping[str, Draft], limits: Limits) -> str | None:
    return over_limits(drafts[candidate.draft], limits) if candidate.draft is not None else None


def over_the_limits(drafts: Iterable[Draft], limits: Limits) -> dict[str, str]:
    """Draft -> why it may not win, of those over ``limits``."""
    reasons = ((draft.quant, over_limits(draft, limits)) for draft in drafts)
    return {name: reason for name, reason in reasons if reason is not None}


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


def sentence_of(
    winner: Candidate,
    best: Candidate,
    tied: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    objective: Objective,
    confidence: float,
) -> str:
    """Why ``winner`` is the pick, ``best`` being first by the figure and ``tied`` as good."""
    value = value_of(winner, objective)
    assert value is not None, "a winner has a value"
    shown = f"{value:.1%}" if objective is Objective.ACCEPTANCE else f"{value:.2f}"
    text = f"{winner.name}: {shown} {objective.unit}"
    if winner.live is not None:
        text += f" on {plural(winner.live.requests, 'prompt')}"
    if winner.draft is not None and winner.live is not None:
        if objective is Objective.DECODE_SPEED and winner.decode_speedup is not None:
            text += f", {winner.decode_speedup:.2f}x no draft, end to end"
        elif winner.speedup is not None:
            text += ","
        if winner.speedup is not None:
            text += f" {winner.speedup:.2f}x" + (
                "" if objective is Objective.DECODE_SPEED else " no draft"
            )
            if winner.speedup_interval:
                low, high = winner.speedup_interval.low, winner.speedup_interval.high
                text += f" ({confidence:.0%}: {low:.2f} to {high:.2f})"
        rate = winner.live.acceptance_rate
        if rate is not None and objective is not Objective.ACCEPTANCE:
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
