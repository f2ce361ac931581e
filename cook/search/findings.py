"""What a search found out, as its record, and as a recipe: the one it was given, with the mix that
was found as a quant."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cook.engines.base import Engine
from cook.errors import InputError, InternalError
from cook.formats.quant_types import Flavour, ftype_by_name
from cook.job.locate import ModelFile
from cook.prompts.calibration import split_for_calibration
from cook.prompts.prompt_set import load_prompts
from cook.provenance import cook_version, machine
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.load import LoadedRecipe, parse_recipe
from cook.recipe.rules import ModelTensors, Resolution
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
from cook.search.space import Mix, Space, Span

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
        prompts=PromptParts(_calibrating(ready), ready.prompts, ready.verdict),
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
        evaluations=tuple(_evaluations(sensitivity)),
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


def _calibrating(ready: PreparedSearch) -> tuple[str, ...]:
    """Ids of the prompts that the imatrix was made on; none where it is of a text."""
    recipe = ready.prepared.recipe
    if recipe.imatrix is None or recipe.imatrix.corpus != "trace" or recipe.score is None:
        return ()
    split = split_for_calibration(recipe.score.prompts, load_prompts(recipe.score.prompts))
    return tuple(p.id for p in split.calibration.prompts)


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


def _evaluations(sensitivity: Sensitivity) -> Iterator[EvaluatedMix]:
    for mix, entry in sensitivity.ledger.entries.items():
        yield EvaluatedMix(
            purpose=entry.purpose,
            why=entry.why,
            mix=described(sensitivity, mix),
            size_bytes=sensitivity.space.bytes_of(mix),
            replayed=replayed_mix(entry.replies),
            seconds=entry.seconds,
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


_HEADER = """\
# `cook search` wrote this: the recipe it was given, and the mix that it found as the last quant.
# Build it, and every quant is compared with the others: cook build {file}
"""


def with_quant(
    loaded: LoadedRecipe,
    name: str,
    types: Mapping[str, str],
    space: Space,
    model: ModelFile,
    engine: Engine,
    path: Path,
) -> str:
    """The text of ``loaded`` with a quant called ``name`` in which tensors have ``types``; to be
    kept in ``path``.

    Its rules name whole groups where one type holds throughout, else tensors.
    """
    import yaml

    document = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    for quant in document.get("quants", []):
        if "rules" in quant:
            quant["rules"] = [{r["selector"]: r["type"]} for r in quant["rules"]]
    found = {
        "name": name,
        "type": base_type(types, space, engine),
        "rules": [{selector: type_name} for selector, type_name in rules(types, space)],
    }
    document["quants"] = [*document.get("quants", []), found]
    ordered = {"version": document.pop("version"), "name": document.pop("name", loaded.recipe.name)}
    body = yaml.safe_dump({**ordered, **document}, sort_keys=False, allow_unicode=True, width=100)
    text = _HEADER.format(file=path.name) + body
    own: Any = next(q for q in parse_recipe(text, path).quants if q.name == name)
    tensors = ModelTensors(model.file.tensors, model.file.architecture)
    resolved = tensors.resolve(own, engine.flavour).types
    wrong = [tensor for tensor, wanted in types.items() if resolved[tensor] != wanted]
    if wrong:
        raise InternalError(f"the recipe that was written has another type for {wrong[0]}")
    return text


def rules(types: Mapping[str, str], space: Space) -> list[tuple[str, str]]:
    """(selector, type) of every tensor that the space has."""
    found: list[tuple[str, str]] = []
    groups: dict[str, list[str]] = {}
    for tie in space.ties:
        groups.setdefault(tie.group, []).extend(t.name for t in tie.tensors)
    for group, names in groups.items():
        common = {types[name] for name in names}
        if len(common) == 1:
            found.append((group, common.pop()))
            continue
        of_group = {name: types[name] for name in names}
        others = dict.fromkeys((n for g, more in groups.items() if g != group for n in more))
        resolution = Resolution({**of_group, **others}, {}, frozenset())
        found += [(rule.pattern, rule.type) for rule in to_engine_rules(resolution)]
    return found


def base_type(types: Mapping[str, str], space: Space, engine: Engine) -> str:
    """The base type that the file is said to have: of the type of most of its weights, where that
    asks for no imatrix itself."""
    weights: dict[str, int] = {}
    for tie in space.ties:
        for tensor in tie.tensors:
            weights[types[tensor.name]] = weights.get(types[tensor.name], 0) + tensor.elements
    for type_name in sorted(weights, key=lambda t: -weights[t]):
        own = type_name.upper()
        for name in sorted(engine.facts.ftypes, key=lambda n: (n != own, len(n), n)):
            base = ftype_by_name(name)
            if base.default == type_name and Flavour(engine.flavour) not in base.imatrix:
                return base.name
    return "Q8_0"
