"""The choice: the candidate whose expected figure is the best, by all that was measured so far.

:func:`choose` is asked after the forecasts, and again after every round of live runs; what it
knows is one distribution of how good every candidate is. :func:`confirm` tells of the last one,
beside what was predicted. By live runs alone :func:`pick` does both.

What was not measured cannot win. A smaller file (no draft has no file at all) takes the place of
the best only where it is shown to be as good within the margin that the recipe states. What the
measurements cannot tell is *undecided*, and the sentence says so, with what deciding would cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from cook.build.forecast import MODEL, Forecast
from cook.build.sentence import Evidence, nothing_qualifies, pick_sentence
from cook.record import record
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import (
    DISTURBED,
    Candidate,
    CandidateKey,
    Certainty,
    Doubt,
    Draft,
    Excluded,
    Pick,
)
from cook.scoring.figures import figures
from cook.scoring.intervals import FEWEST_PROMPTS, SEED, paired
from cook.scoring.noise import LogSpread
from cook.scoring.rounds import Rounds
from cook.scoring.statistics import Contrasts, ErrorTerm, standings

GIB = 1 << 30
SETTING_SHARE = 0.25
"""Of :data:`MODEL`, what settings of one draft differ by: they are priced by the same curves."""


@dataclass(frozen=True)
class Limits:
    """``subject_to`` of a recipe; None means no limit."""

    size_gib: float | None = None
    memory_gib: float | None = None
    bpw: float | None = None
    perplexity_ratio: float | None = None
    kld: float | None = None


@dataclass(frozen=True)
class Aim:
    """What a recipe's ``pick`` asks for. ``margin``: share of the figure that a smaller file may
    be worse by, and by which the best must be known."""

    objective: Objective
    confidence: float = 0.95
    margin: float = 0.01
    weights: Mapping[str, float] | None = None


class Runner(Protocol):
    """A candidate with its requests, predicted or live. ``name`` is for people."""

    @property
    def key(self) -> CandidateKey: ...

    @property
    def name(self) -> str: ...

    @property
    def runs(self) -> tuple[PromptRun, ...]: ...


@dataclass(frozen=True)
class LiveRunner:
    """By its live requests, repeats merged."""

    key: CandidateKey
    name: str
    runs: tuple[PromptRun, ...]


Errors = Callable[[Sequence[CandidateKey]], tuple[ErrorTerm, ...]]
"""What the figures of these candidates are off by, beside their prompts."""


def exact(_: Sequence[CandidateKey]) -> tuple[ErrorTerm, ...]:
    """Nothing but prompts differs."""
    return ()


@dataclass(frozen=True)
class ForecastErrors:
    """What forecast speeds are off by: the ``timing`` of each file, and the ``model`` that makes
    speeds of it (overheads, the windows that were timed), of each file and of all drafts alike.
    ``files``: the file of each draft, by its name, where several drafts may be of one.
    """

    timing: LogSpread | None = None
    model: LogSpread = MODEL
    files: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, keys: Sequence[CandidateKey]) -> tuple[ErrorTerm, ...]:
        names = [self.files.get(k.draft or "", k.draft) for k in keys]
        file = _numbered([(k.engine, n, k.cache_type) for k, n in zip(keys, names, strict=True)])
        setting = _numbered([(f, k.settings, k.ngram) for f, k in zip(file, keys, strict=True)])
        drafting = [k.draft is not None for k in keys]

        def drafts_only(groups: Sequence[int]) -> tuple[int, ...]:
            return tuple(g if d else -1 for g, d in zip(groups, drafting, strict=True))

        own, shared = SETTING_SHARE, math.sqrt(1 - SETTING_SHARE**2)
        terms = [
            ErrorTerm(replace(self.model, sd=self.model.sd * shared), drafts_only(file)),
            ErrorTerm(replace(self.model, sd=self.model.sd * own), drafts_only(setting)),
            ErrorTerm(self.model, drafts_only(_numbered([k.engine for k in keys]))),
        ]
        if self.timing is not None:
            terms.append(ErrorTerm(self.timing, file))
        return tuple(terms)


def _numbered(names: Sequence[object]) -> tuple[int, ...]:
    places = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(places[name] for name in names)


@dataclass(frozen=True)
class Chosen:
    """Chosen on ``prompts`` prompts.

    ``ranking``: best expected figure first; ``key`` is the first, or a smaller file shown to be
    as good within ``within``. ``ties`` could not be told from the best; ``probability`` of being
    best, and ``chance`` of being at most ``within`` worse than the best, of each; ``margin`` is
    what the best rival may gain on the leader at the confidence asked for (these three empty or
    None: too few prompts). ``gap``: log of the leader's figure over each one's. ``equal`` are
    shown to be within ``within`` of the leader. ``decided``: ``key`` is within ``within`` of the
    best, at that confidence. ``names`` are for people.
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
    decided: bool = False
    chance: Mapping[CandidateKey, float] = field(default_factory=dict)
    gap: Mapping[CandidateKey, float] = field(default_factory=dict)
    equal: tuple[CandidateKey, ...] = ()

    @property
    def name(self) -> str | None:
        return self.names[self.key] if self.key is not None else None

    def named(self, keys: Sequence[CandidateKey]) -> tuple[str, ...]:
        return tuple(self.names[key] for key in keys)


def choose(
    runners: Sequence[Runner],
    aim: Aim,
    excluded: Sequence[Excluded],
    file_bytes: Mapping[str, int | None],
    *,
    errors: Errors | None = exact,
    live: Rounds[CandidateKey] | None = None,
) -> Chosen:
    """The best expected, or the smallest file shown to be as good within the margin.

    ``excluded`` may not win and have no figures. ``file_bytes`` of each draft, None where it is
    not known, which takes nobody's place; a rival has no file, as no draft. ``errors`` None:
    nothing is known of what the figures are off by, so that nothing is said of how sure they
    are. ``live``: rounds of some of the candidates, which correct what ``runners`` were predicted
    to be.
    """
    objective, weights = aim.objective, aim.weights
    without_figure: list[Excluded] = []
    able: list[Runner] = []
    values: dict[CandidateKey, float] = {}
    for runner in runners:
        counted = figures(runner.runs, weights)
        value = objective.of(counted)
        if value is not None:
            able.append(runner)
            values[runner.key] = value
        else:
            without_figure.append(Excluded(runner.name, objective.why_none(counted)))
    ranking = tuple(sorted(values, key=lambda key: -values[key]))
    chosen = Chosen(
        key=ranking[0] if ranking else None,
        ranking=ranking,
        ties=(),
        probability={},
        margin=None,
        within=aim.margin,
        excluded=(*excluded, *without_figure),
        prompts=0,
        names={r.key: r.name for r in able},
    )
    measured = paired({r.key: r.runs for r in able}, objective, weights) if able else None
    if measured is None or measured.prompts < FEWEST_PROMPTS or errors is None:
        return chosen
    keys = [r.key for r in able]
    standing = standings(
        measured,
        np.random.default_rng(SEED),
        epsilon=aim.margin,
        confidence=aim.confidence,
        errors=errors(keys) if objective.timed else (),
        live=_contrasts(live, keys, aim.confidence) if live is not None else None,
    )
    ranking = tuple(sorted(keys, key=lambda key: -standing.value[key]))

    def place(key: CandidateKey) -> tuple[float, int]:
        size = file_bytes[key.draft] if key.is_file and key.draft is not None else 0
        return float("inf") if size is None else size, ranking.index(key)

    as_good = [
        key
        for key in standing.equivalent
        if key == standing.leader or standing.within[key] >= aim.confidence
    ]
    key = min(as_good, key=place) if standing.decided else standing.leader
    decided = standing.decided and standing.within[key] >= aim.confidence
    return replace(
        chosen,
        key=key,
        ranking=ranking,
        ties=tuple(k for k in ranking if k in standing.ties and k != key),
        probability=standing.probability,
        margin=standing.margin,
        prompts=measured.prompts,
        decided=decided,
        chance=standing.within,
        gap={k: standing.value[standing.leader] - v for k, v in standing.value.items()},
        equal=tuple(k for k in ranking if k in standing.equivalent),
    )


def _contrasts(
    live: Rounds[CandidateKey], keys: Sequence[CandidateKey], confidence: float
) -> Contrasts[CandidateKey] | None:
    """Of those that ran live on all prompts that any ran on.

    Rivals not: what an n-gram method saves hangs on which prompts its server saw before, so that
    a live run is believed on counts alone, and the forecast of the whole trace on speed.
    """
    shares = {r.share for r in live.rounds}
    believed = [k for k in keys if k.ngram is None]
    ran = [k for k in believed if {r.share for r in live.rounds if r.runs.get(k)} == shares]
    return live.contrasts(ran, confidence) if len(ran) > 1 else None


def rank(
    forecasts: Sequence[Forecast], objective: Objective, weights: Mapping[str, float] | None
) -> list[Forecast]:
    """Drafts alone, best first by the predicted figure; what has none comes last."""

    def place(forecast: Forecast) -> float:
        value = objective.of(figures(forecast.runs, weights))
        return float("inf") if value is None else -value

    alone = (f for f in forecasts if f.key.draft is not None and f.key.ngram is None)
    return sorted(alone, key=place)


def beats_no_draft(
    draft: Forecast,
    forecasts: Sequence[Forecast],
    objective: Objective,
    weights: Mapping[str, float] | None,
) -> bool:
    """Whether ``draft`` is forecast to be better than no draft, one of ``forecasts``; also where
    that has no such figure."""
    bare = next((f for f in forecasts if f.key.draft is None), None)
    told = objective.of(figures(draft.runs, weights))
    without = objective.of(figures(bare.runs, weights)) if bare is not None else None
    return told is not None and (without is None or told > without)


def value_of(candidate: Candidate, objective: Objective) -> float | None:
    """The maximized figure as measured live; None where it was not, or does not exist."""
    return objective.of(candidate.live) if candidate.live is not None else None


@dataclass(frozen=True)
class DecidingCost:
    """What deciding would cost: about so many more rounds of live runs, which take so long."""

    rounds: int
    seconds: float


def confirm(
    predicted: Chosen,
    final: Chosen,
    candidates: Sequence[Candidate],
    *,
    aim: Aim,
    live: Rounds[CandidateKey],
    doubts: Mapping[CandidateKey, Doubt],
    cost: DecidingCost | None = None,
    look: float | None = None,
) -> Pick:
    """``final``, the choice by forecasts and live runs, one of ``candidates``, beside what was
    ``predicted``.

    It is confirmed where no draft and another draft ran live too, and the live runs alone show it
    to be within the margin of all of them, and faster than no draft; draft-free speculation where
    its live counts are those simulated. ``doubts``: of live runs that confirm nothing.
    ``cost`` of deciding, where that is open and can be had.
    ``look``: confidence of one look at the live runs, where several share what ``aim`` asks for.
    """
    objective = aim.objective
    looking = replace(aim, confidence=look) if look is not None else aim
    known = {c.key: c for c in candidates}
    winner = known[final.key] if final.key is not None else None
    ran = winner is not None and value_of(winner, objective) is not None
    objection = None
    if final.key is not None:
        objection = _objection(final.key, candidates, looking, live, doubts)
    certainty = _kept(final, cost, objection)
    return Pick(
        candidate=final.name,
        sentence=_sentence(final, winner, candidates, aim, certainty),
        maximize=objective.value,
        confidence=aim.confidence,
        value=value_of(winner, objective) if winner else None,
        ranking=final.named(final.ranking),
        ties=final.named(final.ties),
        excluded=final.excluded,
        choice=record.Choice(
            candidate=predicted.name,
            prompts=predicted.prompts,
            probability=predicted.probability.get(predicted.key) if predicted.key else None,
            margin=predicted.margin,
            within=predicted.within,
            decided=predicted.decided,
            ties=predicted.named(predicted.ties),
            confirmed=objection is None if ran else None,
            best=predicted.names[predicted.ranking[0]] if predicted.ranking else None,
        ),
        certainty=certainty,
    )


def _sentence(
    final: Chosen,
    winner: Candidate | None,
    candidates: Sequence[Candidate],
    aim: Aim,
    certainty: Certainty | None,
) -> str:
    if winner is None or certainty is None:
        return nothing_qualifies(final.excluded)
    ties = final.named(final.ties)
    return pick_sentence(
        Evidence(aim.objective, aim.confidence, certainty, ties, winner, candidates)
    )


def _kept(final: Chosen, cost: DecidingCost | None, objection: str | None) -> Certainty | None:
    if final.key is None:
        return None
    return Certainty(
        decided=final.decided,
        margin=final.within,
        within=final.chance.get(final.key),
        best=final.probability.get(final.key),
        leader=final.names[final.ranking[0]],
        objection=objection,
        rounds_to_decide=cost.rounds if cost else None,
        seconds_to_decide=cost.seconds if cost else None,
        gain=final.margin,
        equal=final.named(final.equal),
        chances={final.names[key]: chance for key, chance in final.chance.items()},
    )


def _objection(
    key: CandidateKey,
    candidates: Sequence[Candidate],
    aim: Aim,
    live: Rounds[CandidateKey],
    doubts: Mapping[CandidateKey, Doubt],
) -> str | None:
    """Why the live runs do not confirm ``key``; None where they do."""
    ran = {c.key: c for c in candidates if value_of(c, aim.objective) is not None}
    if (doubtful := _doubtful(ran.values(), doubts)) is not None:
        return doubtful
    if key not in ran:
        reason = next((c.reason for c in candidates if c.key == key), None)
        return reason or "no live figures"
    if key.ngram is not None:
        counts = ran[key].counts
        if counts is None:
            return "its live counts could not be checked"
        if counts.exact == counts.requests:
            return None
        return f"its counts are as simulated on {counts.exact} of {counts.requests} live requests"
    others = [c for c in ran.values() if c.key != key and c.ngram is None]
    if aim.objective.timed and key.draft is not None and all(c.draft for c in others):
        return "nothing ran without a draft"
    if all(c.draft is None for c in others):
        return "no rival ran"
    for other in others:
        told = live.ratio(key, other.key, aim.confidence)
        if told is None:
            return "too few prompts or rounds to say how surely live times differ"
        least = 1.0 if other.draft is None and key.draft is not None else 1 - aim.margin
        if told.low < least:
            against = f"{told.low:.2f} to {told.high:.2f} times {other.name}"
            return f"it ran at {against} ({aim.confidence:.0%})"
    return None


def _doubtful(candidates: Iterable[Candidate], doubts: Mapping[CandidateKey, Doubt]) -> str | None:
    """The objection to the first of ``candidates`` of which there are doubts; disturbed ones come
    before all others, since what they say of forecasts is not known."""
    found = [(c.name, doubts[c.key]) for c in candidates if c.key in doubts]
    found.sort(key=lambda one: one[1].cause != DISTURBED)
    return next((doubt.of(name) for name, doubt in found), None)


def pick(
    candidates: Sequence[Candidate],
    drafts: Mapping[str, Draft],
    *,
    aim: Aim,
    limits: Limits,
    live: Rounds[CandidateKey],
    doubts: Mapping[CandidateKey, Doubt] | None = None,
) -> Pick:
    """Choose by live runs alone; the result says why in one sentence, and what could not win.

    ``doubts``: of live runs that confirm nothing.
    """
    excluded: list[Excluded] = []
    runners: list[LiveRunner] = []
    merged = live.merged
    for candidate in candidates:
        value = value_of(candidate, aim.objective)
        draft = drafts[candidate.draft] if candidate.key.is_file and candidate.draft else None
        reason = over_limits(draft, limits) if draft is not None else None
        if reason is None and (value is None or candidate.key not in merged):
            reason = candidate.reason or (
                aim.objective.why_none(candidate.live) if candidate.live else "not measured"
            )
        if reason is not None:
            excluded.append(Excluded(candidate.name, reason))
        else:
            runners.append(LiveRunner(candidate.key, candidate.name, merged[candidate.key]))
    chosen = choose(
        runners,
        aim,
        excluded,
        {name: draft.file_bytes for name, draft in drafts.items()},
        errors=_started(live),
    )
    winner = next((c for c in candidates if c.key == chosen.key), None)
    objection = _doubtful(candidates, doubts or {})
    certainty = _kept(chosen, None, objection)
    return Pick(
        candidate=chosen.name,
        sentence=_sentence(chosen, winner, candidates, aim, certainty),
        maximize=aim.objective.value,
        confidence=aim.confidence,
        value=value_of(winner, aim.objective) if winner else None,
        ranking=chosen.named(chosen.ranking),
        ties=chosen.named(chosen.ties),
        excluded=chosen.excluded,
        certainty=certainty,
    )


def _started(live: Rounds[CandidateKey]) -> Errors | None:
    """The starts of the servers, each on its own; None where nothing tells of them."""
    spread = live.start()
    if spread is None:
        return None
    rounds = max((sum(bool(r.runs.get(k)) for r in live.rounds) for k in live.keys), default=1)

    def terms(keys: Sequence[CandidateKey]) -> tuple[ErrorTerm, ...]:
        return (ErrorTerm(spread.over(rounds), tuple(range(len(keys)))),)

    return terms


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


def _gib(size_bytes: int | None) -> float | None:
    return size_bytes / GIB if size_bytes is not None else None
