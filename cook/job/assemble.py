"""From what ran to the record: drafts, candidates, the pick, warnings, and every step."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

from cook.engines.base import DraftSettings
from cook.formats.gguf import TensorInfo, read_gguf
from cook.graph.execute import Outcomes, closure
from cook.graph.step import Source, Step
from cook.job.count_accuracy import rival_counts
from cook.job.decide import Decision
from cook.job.forecast import Forecaster
from cook.job.layout import Configuration, DraftPlan, ForecastPlan, Layout
from cook.job.prepare import Prepared
from cook.job.sentence import AGAIN, DECODE, WHOLE, candidates_and_pick, nothing_qualifies
from cook.job.what_if import chain_forecast, rejection
from cook.provenance import cook_version, machine
from cook.recipe.rules import some
from cook.recipe.schema import SubjectToSpec
from cook.record.record import (
    SCHEMA_VERSION,
    Candidate,
    CandidateKey,
    Draft,
    DraftSpeed,
    Factors,
    ImatrixCoverage,
    LayerCoverage,
    NoiseFloor,
    Objective,
    Pick,
    Quality,
    Record,
    Rejection,
    ReplayedPrompts,
    SampledChain,
    Serving,
    StepRecord,
    TypeSpan,
)
from cook.scoring.compare import Row, by_prompt, common, forecast_of, log_ratio, sides
from cook.scoring.simulate import PROFILES, RULES, simulate
from cook.steps.checks import output_check
from cook.steps.copies import SpliceHeadStep
from cook.steps.head_replay import broken_head
from cook.steps.work import model_digest, model_paths

if TYPE_CHECKING:
    from cook.steps.imatrix import HeadImatrixStep, ImatrixStep

TEXT_DIGITS = 16
"""Of a reply's SHA-256: enough to tell two texts of one prompt apart."""


def assemble(
    prepared: Prepared,
    outcomes: Outcomes,
    decision: Decision | None = None,
) -> Record:
    """The record of a build: the recipe, what came of every step, and what was decided. Pure:
    reads only what is given."""
    recipe, layouts = prepared.recipe, prepared.layouts
    layout = layouts[0]  # target and prompts are the same for every engine
    candidates: tuple[Candidate, ...] = ()
    sentence = nothing_qualifies(())
    asked = recipe.pick
    pick = Pick(None, sentence, asked.maximize, asked.confidence, asked.margin, None, (), ())
    timed: list[Step[Any]] = [s for plan in _plans(layouts) for s in plan.steps() if s.timed]
    if decision is not None:
        timed = [*decision.dealing.steps, *timed, *decision.slot_steps]
        ran = {c.key: c for c in (*decision.baselines, *decision.finalists)}
        rest = [c for one in layouts for c in one.grid if c.key not in ran]
        configurations = [*ran.values(), *rest]
        found, pick = candidates_and_pick(decision, configurations)
        drawn: dict[CandidateKey, Rejection] = {}
        for forecaster in decision.forecasters.values():
            drawn |= rejection(forecaster)
        candidates = tuple(
            _checked(one, configuration, layouts, decision, outcomes, drawn.get(one.key))
            for one, configuration in zip(found, configurations, strict=True)
        )
    # What came of every step that is timed: of each `others_cores` and its `warnings`.
    timings = [one for step in timed if (one := outcomes.result(step)) is not None]
    return Record(
        schema_version=SCHEMA_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engines={one.engine.name: one.engine.identity for one in layouts},
        recipe=recipe.name,
        recipe_sha256=prepared.loaded.sha256,
        recipe_text=prepared.loaded.text,
        demo=prepared.demo,
        target=str(layout.target.path) if layout.target else "",
        target_bytes=layout.target.size_bytes if layout.target else 0,
        target_digest=layout.target.digest if layout.target else None,
        target_description=layout.target_description,
        defaults={one.engine.name: dict(one.engine.defaults) for one in layouts},
        prompts=layout.prompts.name if layout.prompts else "",
        prompts_sha256=layout.prompts.sha256 if layout.prompts else "",
        max_tokens=recipe.score.max_tokens if recipe.score else 0,
        temperature=recipe.score.sampling.to_sampling().temperature if recipe.score else 0.0,
        source_quality=reference_quality(layout, outcomes),
        drafts=draft_records(layouts, outcomes),
        candidates=candidates,
        left_out=(
            *(out for one in layouts for out in one.left_out),
            *(decision.left_out if decision is not None else ()),
        ),
        pick=pick,
        warnings=_warnings(layouts, outcomes, decision, candidates, timings),
        steps=_steps(layouts, outcomes, decision),
        noise=_noise(decision) if decision is not None else (),
        factors=_factors(decision) if decision is not None else (),
        together=decision.dealing.together if decision and decision.dealing.steps else None,
        imatrix=imatrix_coverage(layout.imatrix, outcomes),
        disturbed=sum(bool(one.warnings) for one in timings),
        sources=prepared.origins,
        replayed=tuple(replayed_prompts(_plans(layouts), outcomes)),
        slots=decision.slot_speeds if decision is not None else (),
        chains=_chains(decision) if decision is not None else (),
    )


def replayed_prompts(
    plans: Sequence[ForecastPlan], outcomes: Outcomes
) -> Iterator[ReplayedPrompts]:
    """Every draft of which anything was replayed."""
    for plan in plans:
        forecaster = Forecaster(plan, outcomes)
        lengths = sorted({s.n_max for s in plan.settings})  # the middle one is taken
        settings = DraftSettings(lengths[len(lengths) // 2])
        digests: dict[str, str] = {}
        for draft in plan.every:
            texts = forecaster.texts(draft)
            if not texts or draft.draft.after is not None:
                continue
            heads = [head for head in forecaster.trace.heads if head.id in texts]
            runs = [simulate(texts[h.id], settings, plan.profile_of(draft)) for h in heads]
            digests = digests or {
                reply.head.id: sha256(reply.tokens.tobytes()).hexdigest()[:TEXT_DIGITS]
                for reply in forecaster.trace
            }
            yield ReplayedPrompts(
                engine=plan.engine.name,
                draft=draft.draft.name,
                cache_type=draft.cache_type,
                n_max=settings.n_max,
                ids=tuple(head.id for head in heads),
                categories=tuple(head.category for head in heads),
                drafted=tuple(run.draft_n for run in runs),
                accepted=tuple(run.draft_n_accepted for run in runs),
                texts=tuple(digests[head.id] for head in heads),
            )


def _plans(layouts: Sequence[Layout]) -> list[ForecastPlan]:
    return [layout.forecast for layout in layouts if layout.forecast is not None]


def _checked(
    one: Candidate,
    configuration: Configuration,
    layouts: Sequence[Layout],
    decision: Decision,
    outcomes: Outcomes,
    drawn: Rejection | None,
) -> Candidate:
    """A candidate with how its server runs, and what was checked of its live requests."""
    key, live, reason = one.key, configuration.live, None
    if one.predicted is not None:
        one = replace(one, predicted=replace(one.predicted, rejection=drawn))
    if one.live is None:
        known = {out.candidate: out.reason for out in (*decision.excluded, *decision.left_out)}
        dropped = decision.dropped.get(configuration.draft.name) if configuration.draft else None
        forecast = "predicted; not among the finalists" if key in decision.forecasts else "not run"
        reason = known.get(one.name) or dropped or forecast
    one = replace(
        one,
        reason=reason,
        serving=Serving(live.context, live.target_args, live.draft_args, live.draft_context),
    )
    other, dealt = decision.dealing.on_reference.get(key), decision.dealing.dealt(key)
    if dealt is None:
        return replace(one, reference=by_prompt(other, live=True) if other else None)
    layout = next(each for each in layouts if each.engine.name == key.engine)
    started = list(dealt.outcomes(outcomes.result))
    checks = layout.checks(configuration, dealt, decision.dealing.dealt(CandidateKey(key.engine)))
    compared = outcomes.result(checks.compare) if checks.compare else None
    control = outcomes.result(checks.control) if checks.control else None
    uncontrolled = outcomes.why_not(checks.control) if checks.control and not control else None
    counts = outcomes.result(checks.counts) if checks.counts else None
    why_not_counted = None
    if checks.counts is not None and counts is None:
        why_not_counted = outcomes.why_not(checks.counts)
    elif counts is not None and not counts.requests:
        why_not_counted = (
            f"the engine returns no token ids, and the tokens of {counts.passed_over} replies "
            "cannot be read from their text"
        )
    elif key.ngram is not None and checks.counts is None:
        forecaster = decision.forecasters.get(key.engine)
        counts = rival_counts(key, dealt, forecaster) if forecaster is not None else None
        why_not_counted = None if counts else "the engine returns no token ids"
    elif live.head is not None and checks.counts is None:
        why_not_counted = (
            "the requests of heads are recounted on llama.cpp, where these are replayed"
        )
    return replace(
        one,
        output=output_check(compared, control, uncontrolled) if compared else None,
        server_peak_rss_bytes=max((each.peak_rss_bytes for each in started), default=None),
        command=started[0].command if started else (),
        counts=counts if counts and counts.requests else None,
        counts_reason=why_not_counted,
        starts=len(started) or None,
        reference=by_prompt(other, live=True) if other else None,
        log=started[0].log if started else None,
    )


def _noise(decision: Decision) -> tuple[NoiseFloor, ...]:
    times = NormalDist().inv_cdf((1 + decision.confidence) / 2)
    return tuple(
        NoiseFloor(engine, decision.confidence, times * deviation)
        for engine, deviation in decision.acceptance_sd.items()
        if deviation is not None
    )


def _factors(decision: Decision) -> tuple[Factors, ...]:
    """Of every engine, what its drafts' live speedups are of those forecast, on the requests that
    both were dealt."""

    def off(row: Row[CandidateKey], bare: Row[CandidateKey], objective: Objective) -> float | None:
        mine, theirs = sides(common(row.live, bare.live))
        live = log_ratio(mine, theirs, objective)
        forecast = forecast_of(row, bare, mine, objective)
        return live - forecast if live is not None and forecast is not None else None

    found = []
    for engine in dict.fromkeys(key.engine for key in decision.rows):
        bare = decision.rows.get(CandidateKey(engine))
        drafts = [r for r in decision.rows.values() if r.key.engine == engine and r.key.is_file]
        logs = [[off(row, bare, o) for o in (DECODE, WHOLE)] for row in drafts if bare is not None]
        both = [(one, other) for one, other in logs if one is not None and other is not None]
        if both:
            decode, whole = (math.exp(fmean(each)) for each in zip(*both, strict=True))
            found.append(Factors(engine, decode, whole, len(both)))
    return tuple(found)


def _chains(decision: Decision) -> tuple[SampledChain, ...]:
    """What is forecast under the other sampling chains; empty where none is asked for."""
    ids = [prompt.id for prompt in decision.prompts]
    return tuple(
        chain_forecast(forecaster, chain, ids, decision.score.weights)
        for forecaster in decision.forecasters.values()
        for chain in forecaster.plan.chains
    )


def _warnings(
    layouts: Sequence[Layout],
    outcomes: Outcomes,
    decision: Decision | None,
    candidates: Sequence[Candidate],
    timings: Sequence[Any],
) -> tuple[str, ...]:
    warnings = [w for layout in layouts for w in layout.warnings]
    warnings += by_cause(
        (step.label, warning)
        for layout in layouts
        for step in layout.making()
        for warning in getattr(outcomes.result(step), "warnings", ())
    )
    if decision is not None:
        warnings += [
            f"{engine}: nothing could be predicted: {reason}"
            for engine, reason in decision.silent.items()
        ]
    warnings += _unlike(layouts, candidates)
    # A warning for each head of which the target accepts next to nothing at any length.
    heads, right, drafts = _heads(layouts), Counter[str](), Counter[str]()
    for c in candidates:
        if c.draft in heads and c.live and c.live.drafted and c.settings:
            right[c.draft] += c.live.accepted or 0
            drafts[c.draft] += c.live.drafted // c.settings.n_max
    found = {name: broken_head(right[name], count) for name, count in drafts.items()}
    warnings += [f"{name}: {what}" for name, what in found.items() if what is not None]
    for layout in layouts:
        for head in layout.forecast.heads if layout.forecast is not None else ():
            if (replay := outcomes.result(head.replay)) and replay.idle_block:
                warnings.append(f"{head.draft.name}: {replay.idle_block}")
    warnings += _unforeseen(candidates)
    if cores := [one.others_cores for one in timings if one.warnings]:
        warnings.append(
            f"{len(cores)} of {len(timings)} timings were disturbed: other programs kept up to "
            f"{max(cores):.1f} cores busy meanwhile, and those speeds are not to be trusted "
            f"(on an idle machine {AGAIN} measures again)"
        )
    return tuple(dict.fromkeys(warnings))


NAMED = 12
"""Steps that a warning names at most."""


def by_cause(warnings: Iterable[tuple[str, str]]) -> list[str]:
    """(step, warning) as one line a warning: what several steps say is printed once, with their
    names."""
    steps: dict[str, dict[str, None]] = {}
    for label, warning in warnings:
        steps.setdefault(warning, {})[label] = None
    return [f"{some([*labels], NAMED)}: {warning}" for warning, labels in steps.items()]


def _unlike(layouts: Sequence[Layout], candidates: Sequence[Candidate]) -> list[str]:
    """A warning for each engine whose decode speeds hold what those of others do not."""
    late = {
        layout.engine.name
        for layout in layouts
        if RULES[PROFILES[layout.engine.flavour]].reads_late
    }
    heads = _heads(layouts)
    unlike = {
        c.engine
        for c in candidates
        if c.engine in late and c.live and c.live.drafted and c.live.draft_prompt_ms is None
        if c.draft not in heads  # which read it with the target
    }
    return [
        f"{name}: the server counts the draft's reading of the prompt as decoding, and neither its "
        "answers nor timings tell how long that took: decode speeds with a draft hold it, "
        "end-to-end speeds are right (`method: replay` times it)"
        for name in sorted(unlike)
    ]


def _heads(layouts: Sequence[Layout]) -> set[str]:
    return {draft.name for layout in layouts for draft in layout.drafts if draft.head is not None}


LEAST_RATIO = 0.75
"""Of a live speedup over its forecast, or the inverse: below it something is not known."""


def _unforeseen(candidates: Sequence[Candidate]) -> list[str]:
    """A warning where forecasts were far off: those of what did not run may be as well."""
    found = []
    for c in candidates:
        if c.predicted is None or c.draft is None:
            continue
        for kind, said, seen in (
            ("end to end", c.predicted.speedup, c.speedup),
            ("decode", c.predicted.decode_speedup, c.decode_speedup),
        ):
            ratio = said / seen if said is not None and seen else None
            if ratio is not None and not LEAST_RATIO < ratio < 1 / LEAST_RATIO:
                found.append(f"{c.name} {ratio - 1:+.0%} {kind}")
    if not found:
        return []
    return [
        f"forecast speedups were far from live ones ({some(found, NAMED)}): what did not run may "
        "be as far from its forecast (`method: live` runs every candidate)"
    ]


def _steps(
    layouts: Sequence[Layout],
    outcomes: Outcomes,
    decision: Decision | None,
) -> tuple[StepRecord, ...]:
    wanted: list[Step[Any]] = [step for layout in layouts for step in layout.making()]
    wanted += [step for plan in _plans(layouts) for step in plan.steps()]
    wanted += decision.dealing.steps if decision is not None else ()
    wanted += (*decision.slot_steps, *decision.checks) if decision is not None else ()
    records = []
    ran = set(outcomes.ran)
    for step in closure(wanted).values():
        artifact = outcomes.artifacts.get(step.key)
        failure = outcomes.failures.get(step.key)
        state = "failed" if failure else "ran" if step.label in ran else "reused"
        records.append(
            StepRecord(
                label=step.label,
                kind=step.kind,
                key=step.key,
                state=state if artifact or failure else "not run",
                seconds=artifact.seconds if artifact else None,
                command=tuple(artifact.result.get("command", ())) if artifact else (),
                error=failure.error.message if failure else None,
            )
        )
    return tuple(records)


MAX_SKIPPED = 64
"""Names of tensors without data that a record lists; their number it always has."""


def imatrix_coverage(
    step: ImatrixStep | HeadImatrixStep | None, outcomes: Outcomes
) -> ImatrixCoverage | None:
    """From the step's artifact; None where no matrix was made."""
    from cook.formats.imatrix_file import coverage, read_imatrix, with_experts

    result = outcomes.result(step) if step is not None else None
    if step is None or result is None:
        return None
    matrix = read_imatrix(outcomes.artifact(step).file(step.file_name))
    matrix = with_experts(matrix, read_gguf(step.model.path).tensors)
    layers: dict[int, LayerCoverage] = {}
    for entry in coverage(matrix):
        match = re.match(r"blk\.(\d{1,6})\.", entry.name)
        if entry.experts < 2 or match is None:
            continue
        layer = int(match[1])
        seen = layers.get(layer, LayerCoverage(layer, 0, 0))
        layers[layer] = LayerCoverage(
            layer, seen.experts + entry.experts, seen.covered + entry.usable(step.engine.flavour)
        )
    return ImatrixCoverage(
        chunks=result.chunks,
        context=step.context,
        perplexity=result.perplexity,
        entries=result.entries,
        experts_total=result.experts_total,
        experts_covered=result.experts_covered,
        layers=tuple(layers[layer] for layer in sorted(layers)),
        skipped=result.skipped[:MAX_SKIPPED],
        skipped_count=len(result.skipped),
    )


GIB = 1 << 30
_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,6})\.")


def draft_records(layouts: Sequence[Layout], outcomes: Outcomes) -> tuple[Draft, ...]:
    """Every draft of every engine, as it is known by now."""
    return tuple(
        _draft(layout, plan, outcomes, reference_quality(layout, outcomes))
        for layout in layouts
        for plan in layout.drafts
    )


def reference_quality(layout: Layout, outcomes: Outcomes) -> Quality | None:
    """The source model's own quality on ``layout``'s engine, where it was measured."""
    if layout.reference is None or (result := outcomes.result(layout.reference)) is None:
        return None
    return Quality(result.perplexity, result.error, result.chunks, result.context)


def _draft(layout: Layout, plan: DraftPlan, outcomes: Outcomes, reference: Quality | None) -> Draft:
    quality, quality_reason = _quality(plan, outcomes, reference)
    memory = outcomes.result(plan.memory) if plan.memory else None
    step = plan.making_step
    made = outcomes.artifacts.get(step.key) if step else None
    result = outcomes.result(step) if step else None
    path = file_bytes = tensor_bytes = digest = None
    if isinstance(plan.model, Source):
        digest = plan.model.digest
        path, file_bytes = str(plan.model.path), plan.model.size_bytes
        tensor_bytes = plan.predicted_tensor_bytes
        if plan.head is not None and plan.model == layout.target:
            file_bytes = tensor_bytes  # of the target's file, what is the head
    elif made is not None and result is not None:
        files = model_paths(made)
        path, file_bytes = str(files[0]), sum(file.stat().st_size for file in files)
        spliced = isinstance(plan.model, SpliceHeadStep)  # of the target's file, what is the head
        tensor_bytes = plan.predicted_tensor_bytes if spliced else result.tensor_bytes
        digest = model_digest(made)
    speed, speed_reason = draft_speed(layout, plan, outcomes)
    counts = dict(Counter(result.types.values())) if result else {}
    return Draft(
        quant=plan.name,
        engine=layout.engine.name,
        path=path,
        key=plan.model.key,
        file_bytes=file_bytes,
        tensor_bytes=tensor_bytes,
        bpw=8 * tensor_bytes / plan.elements
        if tensor_bytes is not None and plan.elements
        else None,
        quality=quality,
        quality_reason=quality_reason,
        memory_bytes=memory.total_bytes if memory else None,
        memory_reason=None if memory else outcomes.why_not(plan.memory),
        type_counts=counts or plan.type_counts,
        types=type_map(path),
        speed=speed,
        speed_reason=speed_reason,
        digest=digest,
        reduction=plan.reduction,
        output=plan.output,
        device_bytes=memory.device_bytes if memory else None,
        context=plan.context,
        after=plan.after.settings if plan.after is not None else None,
    )


def _quality(
    plan: DraftPlan, outcomes: Outcomes, reference: Quality | None
) -> tuple[Quality | None, str | None]:
    step = plan.quality
    result = outcomes.result(step) if step is not None else None
    if result is None:
        return None, outcomes.why_not(step)
    divergence = result.divergence
    ratio = result.perplexity / reference.perplexity if reference else None
    quality = Quality(
        perplexity=result.perplexity,
        perplexity_error=result.error,
        chunks=result.chunks,
        context=result.context,
        perplexity_ratio=divergence.perplexity_ratio if divergence else ratio,
        mean_kld=divergence.mean_kld if divergence else None,
        mean_kld_error=divergence.mean_kld_error if divergence else None,
        p99_kld=divergence.p99_kld if divergence else None,
        same_top_percent=divergence.same_top_percent if divergence else None,
    )
    return quality, None


def draft_speed(
    layout: Layout, plan: DraftPlan, outcomes: Outcomes
) -> tuple[DraftSpeed | None, str | None]:
    """The speed, or None and why there is none; the first KV cache type stands for all."""
    if layout.forecast is None:
        return None, "not timed alone: scored by live runs only"
    timed = next((d for d in layout.forecast.every if d.draft.name == plan.name), None)
    if timed is None:
        return None, "not timed alone"
    curve = outcomes.result(timed.curve) if timed.curve is not None else None
    if curve is None:
        return None, outcomes.why_not(timed.curve)
    seconds = dict(zip(curve.widths, curve.seconds[0], strict=True)).get(1)
    if not seconds:
        return None, "no single-token decode was timed"
    return DraftSpeed(1 / seconds, curve.depths[0]), None


def type_map(model: Path | str | None) -> tuple[TypeSpan, ...]:
    """The matrices of a GGUF (shard 1 if split) as spans; empty where there is no file.

    Vectors (norms, biases) are left out: no engine quantizes them.
    """
    from cook.errors import InputError
    from cook.recipe.groups import Group, group_of, mtp_layers_of

    if model is None:
        return ()
    try:
        file = read_gguf(model)
        architecture = file.architecture
        mtp = mtp_layers_of(
            (t.name for t in file.tensors),
            file.integer(f"{architecture}.block_count"),
            file.integer(f"{architecture}.nextn_predict_layers"),
        )
    except InputError:
        return ()  # the steps that needed the file have said what is wrong with it
    cells: dict[tuple[Group, int], list[TensorInfo]] = {}
    for tensor in file.tensors:
        if len(tensor.shape) < 2 or not tensor.name.endswith(".weight"):
            continue
        match = _LAYER.match(tensor.name)
        group = group_of(tensor.name, architecture, mtp)
        cells.setdefault((group, int(match[1]) if match else -1), []).append(tensor)
    groups = list(Group)
    spans: list[TypeSpan] = []
    for group, layer in sorted(cells, key=lambda cell: (groups.index(cell[0]), cell[1])):
        tensors, place = cells[group, layer], layer if layer >= 0 else None
        sizes = [tensor.size_bytes for tensor in tensors]
        known = [size for size in sizes if size is not None]
        span = TypeSpan(
            group=str(group),
            first_layer=place,
            last_layer=place,
            types=dict(sorted(Counter(tensor.type_name for tensor in tensors).items())),
            elements=sum(tensor.elements for tensor in tensors),
            size_bytes=sum(known) if len(known) == len(sizes) else None,
        )
        last = spans[-1] if spans and spans[-1].last_layer == layer - 1 else None
        if last is not None and replace(last, first_layer=layer, last_layer=layer) == span:
            spans[-1] = replace(last, last_layer=layer)  # neighbours that are alike become one
        else:
            spans.append(span)
    return tuple(spans)


def over_limits(draft: Draft, limits: SubjectToSpec) -> str | None:
    """The first limit that ``draft`` does not keep, or could not be measured against."""
    quality, memory = draft.quality, draft.device_bytes or draft.memory_bytes
    why_no_memory, why_no_quality = draft.memory_reason, draft.quality_reason
    ratio, kld = (quality.perplexity_ratio, quality.mean_kld) if quality else (None, None)
    for name, limit, value, reason in (
        ("size_gib", limits.size_gib, _gib(draft.file_bytes), None),
        ("memory_gib", limits.memory_gib, _gib(memory), why_no_memory),
        ("bpw", limits.bpw, draft.bpw, None),
        ("perplexity_ratio", limits.perplexity_ratio, ratio, why_no_quality),
        ("kld", limits.kld, kld, why_no_quality),
    ):
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
