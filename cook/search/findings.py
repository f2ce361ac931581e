"""What a search found out, as its record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cook.errors import InputError
from cook.provenance import cook_version, machine
from cook.record.search_record import (
    SEARCH_VERSION,
    AcceptanceLaw,
    AllocationBound,
    CsvAgreement,
    Effect,
    EvaluatedMix,
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
from cook.scoring.fits import WholeMix, fit_law, predicted_length
from cook.search.judge import CONFIDENCE, MARGIN, Contender, Judged, effect, replayed_mix
from cook.search.pace import CycleTimes
from cook.search.prepared import PreparedSearch
from cook.search.sensitivity import Sensitivity, kld
from cook.search.space import Mix, Span

AGREES = 0.3
"""Rank correlation below which a published table disagrees with what is replayed."""
HELD_OUT = 3
"""One whole mix in so many judges the law and does not make it."""


@dataclass(frozen=True, eq=False)
class Explored:
    """What was found before the verdict: the costs of spans, the best mix, the law of acceptance
    or why there is none, and how far published costs agree."""

    sensitivity: Sensitivity
    best: Mix
    max_bytes: int
    law: AcceptanceLaw | None
    warnings: tuple[str, ...]
    csv: CsvAgreement | None = None
    pace: CycleTimes | None = None


def findings(
    ready: PreparedSearch,
    found: Explored,
    contenders: Sequence[Contender],
    judged: Judged,
    timing: FinalistTiming | None,
    recipe_text: str | None,
    seconds: float,
) -> SearchRecord:
    """The record of a search that ended."""
    loaded, request, sensitivity = ready.prepared.loaded, ready.request, found.sensitivity
    layout = ready.layout
    budget = request.budget
    best = next(c for c in contenders if c.name == judged.best)
    _, allocation = sensitivity.allocated(found.max_bytes)
    warnings, csv = found.warnings, found.csv
    if csv is not None and csv.rank_correlation is not None and csv.rank_correlation < AGREES:
        text = f"{csv.file}: hardly ranks what is lost here (rank correlation "
        text += f"{csv.rank_correlation:.2f} over {csv.compared}); to measure instead, leave "
        warnings = (*warnings, text + "--from-csv out")
    return SearchRecord(
        schema_version=SEARCH_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engine=layout.engine.name,
        identity=layout.engine.identity,
        recipe=loaded.recipe.name,
        recipe_text=loaded.text,
        quant=judged.given or ready.drafts[0].name,
        demo=request.demo,
        target=str(layout.target.path) if layout.target else "",
        prompts=PromptParts(ready.calibrating, ready.prompts, ready.verdict),
        aim=SearchAim(
            maximize=request.maximize,
            max_bytes=request.size_bytes,
            max_memory_bytes=request.memory_bytes,
            floor=request.floor,
            max_evaluations=int(budget.evaluations) if budget.evaluations is not None else None,
            max_seconds=budget.seconds,
            n_max=ready.deployed.settings.n_max,
            confidence=CONFIDENCE,
            margin=MARGIN,
        ),
        reference_bytes=sensitivity.space.bytes_of(sensitivity.reference),
        spans=tuple(_spans(sensitivity, best.types)),
        evaluations=tuple(
            EvaluatedMix(
                purpose=entry.purpose,
                why=entry.why,
                mix=described(sensitivity, mix),
                size_bytes=sensitivity.space.bytes_of(mix),
                replayed=replayed_mix(entry.replies),
                seconds=entry.seconds,
            )
            for mix, entry in sensitivity.ledger.entries.items()
        ),
        law=found.law,
        decode=found.pace.law if found.pace is not None else None,
        allocation=AllocationBound(
            max_bytes=found.max_bytes,
            size_bytes=allocation.size_bytes + sensitivity.space.fixed_bytes,
            damage=allocation.damage,
            bound=allocation.bound,
            gap=allocation.gap,
        ),
        front=tuple(_front(found)),
        finalists=judged.finalists,
        best=judged.best,
        verdict=judged.verdict,
        sentence=judged.sentence,
        found_recipe=recipe_text,
        csv=csv,
        warnings=warnings,
        seconds=seconds,
        timing=timing,
    )


def acceptance_law(
    reference: ReplayedMix, whole: Sequence[WholeMix], n_max: int
) -> tuple[AcceptanceLaw | None, tuple[str, ...]]:
    """From the KLD of spans to acceptance, by ``whole`` mixes; or why there is none."""
    held_out = whole[HELD_OUT - 1 :: HELD_OUT]
    fitted = [mix for number, mix in enumerate(whole, 1) if number % HELD_OUT]
    try:
        return fit_law(reference, fitted, held_out, n_max), ()
    except InputError as error:
        return None, (error.message,)


def _spans(sensitivity: Sensitivity, returned: Mapping[str, str]) -> Iterator[SearchedSpan]:
    """Those of now, each after those that it was split from; ``returned``: the best mix's types."""
    space, every = sensitivity.space, sensitivity.lineage()
    for span in every:
        ties = [space.ties[i] for i in span.ties]
        layers = [t.layer for t in ties if t.layer is not None]
        chosen = {returned[t.name] for tie in ties for t in tie.tensors}
        parts = tuple(one.name for one in every if one.parent == span)
        yield SearchedSpan(
            name=span.name,
            group=span.group,
            first_layer=min(layers, default=None),
            last_layer=max(layers, default=None),
            tensors=tuple(t.name for tie in ties for t in tie.tensors),
            elements=space.elements(span),
            reference=sensitivity.reference[span.ties[0]],
            chosen=chosen.pop() if len(chosen) == 1 and not parts else None,
            types=tuple(_type_effect(sensitivity, span, t) for t in span.types),
            split_into=parts,
        )


def _type_effect(sensitivity: Sensitivity, span: Span, type_name: str) -> TypeEffect:
    size = sensitivity.space.bytes_in(span, type_name)
    replies = sensitivity.measured(span, type_name)
    if replies is None:
        inherited = sensitivity.published(span, type_name) is None
        added = Effect(sensitivity.damage(span, type_name, kld))
        return TypeEffect(type_name, size, "inherited" if inherited else "csv", kld=added)
    ratios = (("kld", "tokens"), ("accepted", "drafted"), ("tokens", "cycles"))
    effects = (effect(replies, sensitivity.base, parts, CONFIDENCE) for parts in ratios)
    return TypeEffect(type_name, size, "replay", *effects)


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


def _front(found: Explored) -> Iterator[FrontPoint]:
    """Sizes from the smallest to the largest, with what is known or predicted of each."""
    sensitivity, law, pace = found.sensitivity, found.law, found.pace
    costs = sensitivity.costs() if pace is None else sensitivity.costs(seconds=pace.span_s)
    for point in front(costs):
        replies = sensitivity.ledger.known(sensitivity.mix_of(point))
        length = predicted_length(law, point.damage) if law is not None else None
        speed = None
        if pace is not None and length is not None:
            speed = length / pace.cycle_s(point.seconds)
        yield FrontPoint(
            size_bytes=point.size_bytes + sensitivity.space.fixed_bytes,
            kld=point.damage,
            acceptance_length=length,
            decode_speed=speed,
            replayed=replayed_mix(replies) if replies is not None else None,
        )
