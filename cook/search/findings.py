"""What a search found out, as its record."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cook.errors import InputError
from cook.prompts.calibration import split_for_calibration
from cook.prompts.prompt_set import load_prompts
from cook.provenance import cook_version, machine
from cook.record.search_record import (
    SEARCH_VERSION,
    AcceptanceLaw,
    AllocationBound,
    CostSource,
    CsvAgreement,
    Effect,
    EvaluatedMix,
    Finalist,
    FinalistTiming,
    FrontPoint,
    PromptParts,
    ReplayedMix,
    SearchAim,
    SearchedSpan,
    SearchRecord,
    TypeEffect,
)
from cook.scoring.allocation import front
from cook.scoring.kappa import WholeMix, fit_law, predicted_length
from cook.search.evaluate import Replies
from cook.search.job import SearchJob
from cook.search.judge import CONFIDENCE, MARGIN, Contender, Judged, effect
from cook.search.pace import ByCycle, CycleCost
from cook.search.sensitivity import Sensitivity, kld
from cook.search.space import Mix, Span

AGREES = 0.3
"""Rank correlation below which a published table is told to disagree with what is replayed."""
HELD_OUT = 3
"""One whole mix in so many judges the law and does not make it."""


@dataclass(frozen=True, eq=False)
class Explored:
    """What was found before the verdict: the costs of spans, and the best whole mix."""

    sensitivity: Sensitivity
    best: Mix
    max_bytes: int
    csv: CsvAgreement | None = None
    pace: CycleCost = field(default_factory=ByCycle)


def findings(
    job: SearchJob,
    found: Explored,
    contenders: Sequence[Contender],
    judged: Judged,
    timing: FinalistTiming | None,
    recipe_text: str | None,
    seconds: float,
) -> SearchRecord:
    """The record of a search that ended."""
    loaded, request, sensitivity = job.prepared.loaded, job.request, found.sensitivity
    layout = job.layout
    law, warnings = acceptance_law(found.sensitivity, job.deployed.settings.n_max)
    points = tuple(_front(found, law))
    budget = request.budget
    best = next(c for c in contenders if c.name == judged.best)
    _, allocation = sensitivity.allocated(found.max_bytes)
    fixed = sensitivity.space.fixed_bytes
    return SearchRecord(
        schema_version=SEARCH_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engine=layout.engine.name,
        identity=layout.engine.identity,
        recipe=loaded.recipe.name,
        recipe_sha256=loaded.sha256,
        recipe_text=loaded.text,
        quant=judged.given or job.drafts[0].name,
        demo=request.demo,
        target=str(layout.target.path) if layout.target else "",
        prompts=PromptParts(_calibrating(job), sensitivity.ledger.prompts, job.verdict),
        prompts_sha256=layout.prompts.sha256 if layout.prompts else "",
        aim=SearchAim(
            maximize=request.maximize,
            max_bytes=request.size_bytes,
            max_memory_bytes=request.memory_bytes,
            floor=request.floor,
            max_evaluations=int(budget.evaluations) if budget.evaluations is not None else None,
            max_seconds=budget.seconds,
            n_max=job.deployed.settings.n_max,
            confidence=CONFIDENCE,
            margin=MARGIN,
        ),
        reference="every span in the largest type that is offered",
        reference_bytes=sensitivity.space.bytes_of(sensitivity.reference),
        spans=tuple(_spans(sensitivity, best.types)),
        evaluations=tuple(_evaluations(found)),
        law=law,
        decode=found.pace.law,
        allocation=AllocationBound(
            max_bytes=found.max_bytes,
            size_bytes=allocation.size_bytes + fixed,
            damage=allocation.damage,
            bound=allocation.bound,
            gap=allocation.gap,
        ),
        front=points,
        enough_bytes=_enough(points),
        finalists=tuple(_finalist(c, judged, timed=timing is not None) for c in contenders),
        best=judged.best,
        verdict=judged.verdict,
        sentence=sentence(judged, "tokens/s" if timing is not None else "tokens a cycle"),
        found_recipe=recipe_text,
        csv=found.csv,
        warnings=(*warnings, *_disagreeing(found.csv)),
        seconds=seconds,
        timing=timing,
    )


def _disagreeing(csv: CsvAgreement | None) -> Iterator[str]:
    if csv is not None and csv.rank_correlation is not None and csv.rank_correlation < AGREES:
        yield (
            f"{csv.file}: hardly ranks what is lost here (rank correlation "
            f"{csv.rank_correlation:.2f} over {csv.compared}); to measure instead, leave "
            "--from-csv out"
        )


def sentence(judged: Judged, unit: str = "tokens a cycle") -> str:
    """The verdict in words; ``unit`` of what is sought."""
    best = judged.value[judged.best]
    if judged.given is None:
        return f"{judged.best}: {best:.3f} {unit}; no quant of the recipe is so small"
    own = judged.value[judged.given]
    stays = f"{judged.given} stays, at {own:.3f} {unit}"
    if judged.verdict == "given":
        return f"{stays}: what was found is worse"
    if judged.leader == judged.given:
        return f"tie: {stays}: nothing that was found has more"
    shown = judged.leader if judged.best == judged.given else judged.best
    gain = judged.gain[shown]
    told = f"{gain.value:+.3f} {unit} against {judged.given} ({own:.3f})"
    if gain.interval is not None:
        told += f", {gain.interval.low:+.3f} to {gain.interval.high:+.3f}"
    if judged.best == judged.given:
        return f"tie: {judged.given} stays: {shown} has {told}, and may be {MARGIN:.0%} worse"
    if judged.verdict == "tie":
        return f"tie: {shown} has {told}, which may be chance"
    return f"{shown} is better: {told}"


def replayed_mix(replies: Replies) -> ReplayedMix:
    """Sums over all replies."""
    return ReplayedMix(
        prompts=len(replies.ids),
        drafted=int(replies.drafted.sum()),
        accepted=int(replies.accepted.sum()),
        cycles=int(replies.cycles.sum()),
        positions=int(replies.tokens.sum()),
        mean_kld=replies.mean_kld,
    )


def acceptance_law(
    sensitivity: Sensitivity, n_max: int
) -> tuple[AcceptanceLaw | None, tuple[str, ...]]:
    """From the KLD of spans to acceptance, by the whole mixes that were replayed; or why not."""
    known = sensitivity.ledger.known
    whole = []
    for entry in sensitivity.ledger.entries.values():
        types = _by_span(sensitivity, entry.mix)
        if (
            entry.purpose in ("fit", "candidate", "repair")
            and entry.mix in known
            and types is not None
        ):
            summed = sum(
                sensitivity.damage(span, t, kld)
                for span, t in zip(sensitivity.spans, types, strict=True)
            )
            whole.append(WholeMix(summed, replayed_mix(known[entry.mix])))
    held_out = whole[HELD_OUT - 1 :: HELD_OUT]
    fitted = [mix for number, mix in enumerate(whole, 1) if number % HELD_OUT]
    try:
        return fit_law(replayed_mix(known[sensitivity.reference]), fitted, held_out, n_max), ()
    except InputError as error:
        return None, (error.message,)


def _by_span(sensitivity: Sensitivity, mix: Mix) -> tuple[str, ...] | None:
    """The type of each span; None where one is divided."""
    found = [{mix[place] for place in span.ties} for span in sensitivity.spans]
    if any(len(types) > 1 for types in found):
        return None
    return tuple(types.pop() for types in found)


def _calibrating(job: SearchJob) -> tuple[str, ...]:
    """Ids of the prompts that the imatrix was made on; none where it is of a text."""
    recipe = job.prepared.recipe
    if recipe.imatrix is None or recipe.imatrix.corpus != "trace" or recipe.score is None:
        return ()
    split = split_for_calibration(recipe.score.prompts, load_prompts(recipe.score.prompts))
    return tuple(p.id for p in split.calibration.prompts)


def _spans(sensitivity: Sensitivity, returned: Mapping[str, str]) -> Iterator[SearchedSpan]:
    """Those of now, and those that they were split from; ``returned``: types of the best mix."""
    space = sensitivity.space
    names = {span.name for span in sensitivity.spans} | set(sensitivity.split_into)
    for name, span in sensitivity.every.items():
        if name not in names:
            continue
        ties = [space.ties[i] for i in span.ties]
        layers = [t.layer for t in ties if t.layer is not None]
        chosen = {returned[t.name] for tie in ties for t in tie.tensors}
        split = sensitivity.split_into.get(name, ())
        yield SearchedSpan(
            name=name,
            group=span.group,
            first_layer=min(layers, default=None),
            last_layer=max(layers, default=None),
            tensors=tuple(t.name for tie in ties for t in tie.tensors),
            elements=sum(tie.elements for tie in ties),
            reference=sensitivity.reference[span.ties[0]],
            chosen=chosen.pop() if len(chosen) == 1 and not split else None,
            types=tuple(_type_effect(sensitivity, span, t) for t in span.types),
            split_into=split,
        )


def _type_effect(sensitivity: Sensitivity, span: Span, type_name: str) -> TypeEffect:
    size = sensitivity.space.bytes_in(span, type_name)
    replies = sensitivity.measured(span, type_name)
    if replies is None:
        added = sensitivity.damage(span, type_name, kld)
        source: CostSource = (
            "inherited" if sensitivity.published(span, type_name) is None else "csv"
        )
        return TypeEffect(type_name, size, source, kld=Effect(added))
    reference = sensitivity.ledger.known[sensitivity.reference]

    def against(*parts: str) -> Effect:
        assert len(parts) == 2, "numerator and denominator"
        return effect(replies, reference, (parts[0], parts[1]), CONFIDENCE)

    return TypeEffect(
        type_name,
        size,
        "replay",
        kld=against("kld", "tokens"),
        acceptance=against("accepted", "drafted"),
        acceptance_length=against("tokens", "cycles"),
    )


def _evaluations(found: Explored) -> Iterator[EvaluatedMix]:
    sensitivity = found.sensitivity
    for entry in sensitivity.ledger.entries.values():
        yield EvaluatedMix(
            purpose=entry.purpose,
            why=entry.why,
            mix=described(sensitivity, entry.mix),
            size_bytes=sensitivity.space.bytes_of(entry.mix),
            replayed=replayed_mix(entry.replies),
            seconds=entry.seconds,
            dropped=entry.dropped,
        )


def described(sensitivity: Sensitivity, mix: Mix) -> dict[str, str]:
    """Types by span, and where a span is divided by tensor, of what differs from the reference."""
    found: dict[str, str] = {}
    for span in sensitivity.spans:
        types = {mix[place] for place in span.ties}
        for place in span.ties if len(types) > 1 else span.ties[:1]:
            if mix[place] != sensitivity.reference[place]:
                tie = sensitivity.space.ties[place]
                found[span.name if len(types) == 1 else tie.tensors[0].name] = mix[place]
    return found


def _front(found: Explored, law: AcceptanceLaw | None) -> Iterator[FrontPoint]:
    """Sizes from the smallest to the largest, with what is known or predicted of each."""
    sensitivity, space = found.sensitivity, found.sensitivity.space
    pace, costs = found.pace, sensitivity.costs(kld, found.pace.seconds)
    for point in front(costs):
        types = [c.costs[i].type for c, i in zip(costs, point.chosen, strict=True)]
        replies = sensitivity.ledger.known.get(sensitivity.mix_of(types))
        length = predicted_length(law, point.damage) if law is not None else None
        timed = length is not None and pace.law is not None
        yield FrontPoint(
            size_bytes=point.size_bytes + space.fixed_bytes,
            kld=point.damage,
            acceptance_length=length,
            decode_speed=(length or 0.0) / pace.of_seconds(point.seconds) if timed else None,
            replayed=replayed_mix(replies) if replies is not None else None,
        )


def _enough(points: Sequence[FrontPoint]) -> int | None:
    """The least size from which on nothing gains more than the margin."""
    lengths = [p.acceptance_length for p in points if p.acceptance_length is not None]
    if not lengths:
        return None
    most = max(lengths)
    return next(
        p.size_bytes
        for p in points
        if p.acceptance_length is not None and p.acceptance_length >= (1 - MARGIN) * most
    )


def _finalist(contender: Contender, judged: Judged, *, timed: bool) -> Finalist:
    return Finalist(
        name=contender.name,
        family=contender.family,
        size_bytes=contender.size_bytes,
        types=dict(Counter(contender.types.values())),
        replayed=replayed_mix(contender.replies),
        acceptance_length=judged.lengths[contender.name].interval,
        against_given=judged.against_given.get(contender.name),
        decode_speed=judged.value[contender.name] if timed else None,
        perplexity=math.exp(contender.replies.mean_nll),
        speed_against_given=judged.gain.get(contender.name) if timed else None,
    )
