"""The drafts of a record: what each file is, its types, and how good it is as a language model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.graph.execute import Outcomes
from cook.graph.step import Source, Step
from cook.job.layout import DraftPlan, Layout
from cook.recipe.schema import SubjectToSpec
from cook.record.measured import DraftSpeed, Quality, TypeSpan
from cook.record.record import Draft
from cook.steps.made_model import model_digest, model_paths
from cook.steps.splice_head import SpliceHeadStep

if TYPE_CHECKING:
    from cook.formats.gguf import TensorInfo

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
        memory_reason=None if memory else why_not(plan.memory, outcomes),
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
        return None, why_not(step, outcomes)
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


def why_not(step: Step[Any] | None, outcomes: Outcomes) -> str:
    """Why ``step`` has no result."""
    if step is None:
        return "not asked for"
    failure = outcomes.failures.get(step.key)
    return failure.error.message if failure else "not run"


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
        return None, why_not(timed.curve, outcomes)
    seconds = dict(zip(curve.widths, curve.seconds[0], strict=True)).get(1)
    if not seconds:
        return None, "no single-token decode was timed"
    return DraftSpeed(1 / seconds, curve.depths[0]), None


def type_map(model: Path | str | None) -> tuple[TypeSpan, ...]:
    """The matrices of a GGUF (shard 1 if split) as spans; empty where there is no file.

    Vectors (norms, biases) are left out: no engine quantizes them.
    """
    from cook.errors import InputError
    from cook.formats.gguf import read_gguf
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
        span = _span(str(group), layer if layer >= 0 else None, cells[group, layer])
        last = spans[-1] if spans and spans[-1].last_layer == layer - 1 else None
        if last is not None and replace(last, first_layer=layer, last_layer=layer) == span:
            spans[-1] = replace(last, last_layer=layer)  # neighbours that are alike become one
        else:
            spans.append(span)
    return tuple(spans)


def _span(group: str, layer: int | None, tensors: Sequence[TensorInfo]) -> TypeSpan:
    sizes = [tensor.size_bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return TypeSpan(
        group=group,
        first_layer=layer,
        last_layer=layer,
        types=dict(sorted(Counter(tensor.type_name for tensor in tensors).items())),
        elements=sum(tensor.elements for tensor in tensors),
        size_bytes=sum(known) if len(known) == len(sizes) else None,
    )


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
