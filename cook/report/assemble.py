"""From what ran to the record: figures, quality, speedups, and the pick."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cook.graph.execute import Outcomes, closure
from cook.graph.step import Source, Step
from cook.provenance import cook_version, machine
from cook.recipe.load import LoadedRecipe
from cook.recipe.schema import Recipe
from cook.report.figures import by_category, figures, merge_repeats, output_check
from cook.report.intervals import paired_ratio
from cook.report.record import (
    SCHEMA_VERSION,
    Candidate,
    Draft,
    Excluded,
    Interval,
    Pick,
    Prediction,
    Quality,
    Record,
    StepRecord,
)
from cook.steps.finalists import Judged, reason_not_live
from cook.steps.live import PromptRun
from cook.steps.menu import NO_DRAFT, Configuration, DraftPlan, Menu
from cook.steps.pick import Limits, pick
from cook.steps.quantize import MODEL_FILE


@dataclass(frozen=True)
class Sitting:
    """One build as it went: what was asked, what was left out, what came of every step."""

    loaded: LoadedRecipe
    demo: bool
    menu: Menu
    grid: tuple[Configuration, ...]
    left_out: tuple[Excluded, ...]
    outcomes: Outcomes
    judged: Judged | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe


def assemble(sitting: Sitting) -> Record:
    """The record of a build. Pure: reads only what is in ``sitting``."""
    menu, outcomes, recipe = sitting.menu, sitting.outcomes, sitting.recipe
    reference = _reference(menu, outcomes)
    drafts = tuple(_draft(menu, d, outcomes, reference) for d in menu.drafts)
    runs = _runs(sitting)
    candidates = _candidates(sitting, runs)
    return Record(
        schema_version=SCHEMA_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engines={menu.engine.name: menu.engine.identity},
        recipe=recipe.name,
        recipe_sha256=hashlib.sha256(sitting.loaded.text.encode()).hexdigest(),
        recipe_text=sitting.loaded.text,
        demo=sitting.demo,
        target=str(menu.target.path) if menu.target else "",
        target_bytes=menu.target.size_bytes if menu.target else 0,
        prompts=menu.prompts.name if menu.prompts else "",
        prompts_sha256=menu.prompts.sha256 if menu.prompts else "",
        max_tokens=recipe.score.max_tokens if recipe.score else 0,
        temperature=recipe.score.sampling.temperature if recipe.score else 0.0,
        source_quality=reference,
        drafts=drafts,
        candidates=candidates,
        left_out=sitting.left_out,
        pick=_pick(sitting, candidates, drafts, runs),
        warnings=_warnings(sitting),
        steps=_steps(sitting),
    )


Runs = Mapping[str, tuple[PromptRun, ...] | str]
"""Per configuration: its requests, or the reason there are none."""


def _runs(sitting: Sitting) -> Runs:
    every = [*([sitting.menu.baseline] if sitting.menu.baseline else []), *sitting.grid]
    found: dict[str, tuple[PromptRun, ...] | str] = {}
    for configuration in every:
        rounds = []
        reason = None
        for step in configuration.rounds:
            outcome = sitting.outcomes.result(step)
            if outcome is None:
                failure = sitting.outcomes.failures.get(step.key)
                reason = failure.error.message if failure else "not run"
                break
            rounds.append(outcome.runs)
        found[configuration.name] = reason if reason is not None else merge_repeats(rounds)
    return found


def _candidates(sitting: Sitting, runs: Runs) -> tuple[Candidate, ...]:
    baseline = sitting.menu.baseline
    if baseline is None:
        return ()
    live = {c.name for c in (baseline, *sitting.grid)}
    # A predicted candidate that did not go live is shown all the same.
    rest = [c for c in sitting.menu.grid if c.name not in live] if sitting.judged else []
    every = (baseline, *sitting.grid, *rest)
    return tuple(_candidate(sitting, configuration, runs) for configuration in every)


def _candidate(sitting: Sitting, configuration: Configuration, runs: Runs) -> Candidate:
    score = sitting.recipe.score
    assert score is not None, "candidates come from a score"
    outcomes = sitting.outcomes
    mine = runs.get(configuration.name, reason_not_live(configuration.name))
    base = runs[NO_DRAFT]
    live = None if isinstance(mine, str) else figures(mine, score.weights)
    speedup = decode_speedup = None
    interval: Interval | None = None
    if live is not None and not isinstance(base, str) and not isinstance(mine, str):
        reference = figures(base, score.weights)
        speedup = live.end_to_end_speed / reference.end_to_end_speed
        decode_speedup = live.decode_speed / reference.decode_speed
        if configuration.draft is not None:
            confidence = sitting.recipe.pick.confidence
            interval = paired_ratio(mine, base, "end_to_end_speed", score.weights, confidence)
    compared = outcomes.result(configuration.compare) if configuration.compare else None
    first = outcomes.result(configuration.rounds[0])
    peaks = [r.peak_rss_bytes for s in configuration.rounds if (r := outcomes.result(s))]
    return Candidate(
        name=configuration.name,
        engine=sitting.menu.engine.name,
        draft=configuration.draft.name if configuration.draft else None,
        settings=configuration.settings,
        cache_type=configuration.cache_type,
        live=live,
        reason=mine if isinstance(mine, str) else None,
        categories={} if isinstance(mine, str) else by_category(mine),
        speedup=speedup,
        speedup_interval=interval,
        decode_speedup=decode_speedup,
        output=output_check(compared) if compared else None,
        server_peak_rss_bytes=max(peaks, default=None),
        command=first.command if first else (),
        predicted=_prediction(sitting, configuration, mine),
    )


def _prediction(
    sitting: Sitting, configuration: Configuration, live: tuple[PromptRun, ...] | str
) -> Prediction | None:
    """The forecast of a candidate, and how far off its live run shows it to be."""
    judged, score = sitting.judged, sitting.recipe.score
    if judged is None or score is None:
        return None
    forecast = next((f for f in judged.reported if f.name == configuration.name), None)
    if forecast is None:
        return None
    found = figures(forecast.runs, score.weights)
    off_by = interval = None
    if not isinstance(live, str):
        off_by = found.end_to_end_speed / figures(live, score.weights).end_to_end_speed - 1
        confidence = sitting.recipe.pick.confidence
        interval = paired_ratio(forecast.runs, live, "end_to_end_speed", score.weights, confidence)
    spent = forecast.breakdown
    return Prediction(
        figures=found,
        verify_s=spent.verify_s,
        draft_s=spent.draft_s,
        mirror_s=spent.mirror_s,
        sample_s=spent.sample_s,
        overhead_s=spent.overhead_s,
        probability_best=judged.probability_best.get(configuration.name),
        off_by=off_by,
        off_by_interval=interval,
    )


def _pick(
    sitting: Sitting, candidates: Sequence[Candidate], drafts: Sequence[Draft], runs: Runs
) -> Pick:
    asked = sitting.recipe.pick
    weights = sitting.recipe.score.weights if sitting.recipe.score else None

    def ratio(first: Candidate, second: Candidate) -> Interval | None:
        one, other = runs.get(first.name), runs.get(second.name)
        if one is None or other is None or isinstance(one, str) or isinstance(other, str):
            return None
        return paired_ratio(one, other, asked.maximize, weights, asked.confidence)

    return pick(
        candidates,
        {draft.quant: draft for draft in drafts},
        maximize=asked.maximize,
        limits=Limits(**asked.subject_to.model_dump()),
        confidence=asked.confidence,
        ratio_interval=ratio,
    )


def _reference(menu: Menu, outcomes: Outcomes) -> Quality | None:
    if menu.reference is None or (result := outcomes.result(menu.reference)) is None:
        return None
    return Quality(result.perplexity, result.error, result.chunks, result.context)


def _draft(menu: Menu, plan: DraftPlan, outcomes: Outcomes, reference: Quality | None) -> Draft:
    quality, quality_reason = _quality(plan, outcomes, reference)
    memory = outcomes.result(plan.memory) if plan.memory else None
    made = outcomes.artifacts.get(plan.quantize.key) if plan.quantize else None
    result = outcomes.result(plan.quantize) if plan.quantize else None
    path = file_bytes = tensor_bytes = None
    if isinstance(plan.model, Source):
        path, file_bytes = str(plan.model.path), plan.model.size_bytes
        tensor_bytes = plan.predicted_tensor_bytes
    elif made is not None and result is not None:
        file = made.file(MODEL_FILE)
        path, file_bytes, tensor_bytes = str(file), file.stat().st_size, result.tensor_bytes
    counts: dict[str, int] = {}
    for type_name in result.types.values() if result else ():
        counts[type_name] = counts.get(type_name, 0) + 1
    return Draft(
        quant=plan.name,
        engine=menu.engine.name,
        path=path,
        key=plan.model.key,
        file_bytes=file_bytes,
        tensor_bytes=tensor_bytes,
        bpw=8 * tensor_bytes / plan.elements if tensor_bytes is not None else None,
        quality=quality,
        quality_reason=quality_reason,
        memory_bytes=memory.total_bytes if memory else None,
        memory_reason=None if memory else _why_not(plan.memory, outcomes),
        type_counts=counts or plan.type_counts,
    )


def _quality(
    plan: DraftPlan, outcomes: Outcomes, reference: Quality | None
) -> tuple[Quality | None, str | None]:
    step = plan.quality
    result = outcomes.result(step) if step is not None else None
    if result is None:
        return None, _why_not(step, outcomes)
    found = result.divergence
    ratio = result.perplexity / reference.perplexity if reference else None
    quality = Quality(
        perplexity=result.perplexity,
        perplexity_error=result.error,
        chunks=result.chunks,
        context=result.context,
        perplexity_ratio=found.perplexity_ratio if found else ratio,
        mean_kld=found.mean_kld if found else None,
        mean_kld_error=found.mean_kld_error if found else None,
        p99_kld=found.p99_kld if found else None,
        same_top_percent=found.same_top_percent if found else None,
    )
    return quality, None


def _why_not(step: Step[Any] | None, outcomes: Outcomes) -> str:
    if step is None:
        return "not asked for"
    failure = outcomes.failures.get(step.key)
    return failure.error.message if failure else "not run"


def _warnings(sitting: Sitting) -> tuple[str, ...]:
    told = list(sitting.menu.warnings)
    for step in sitting.menu.making():
        result = sitting.outcomes.result(step)
        told += [f"{step.label}: {w}" for w in getattr(result, "warnings", ())]
    told += _contention(sitting)
    return tuple(dict.fromkeys(told))


def _contention(sitting: Sitting) -> list[str]:
    """One warning for all timings that other programs disturbed."""
    timed: list[Step[Any]] = [*sitting.menu.live(sitting.grid)]
    if sitting.menu.forecast is not None:
        timed += [s for s in sitting.menu.forecast.steps() if s.timed]
    results = [(s, r) for s in timed if (r := sitting.outcomes.result(s)) is not None]
    cores = [r.others_cores for _, r in results if r.warnings]
    if not cores:
        return []
    return [
        f"{len(cores)} of {len(results)} timings were disturbed: other programs kept up to "
        f"{max(cores):.1f} cores busy meanwhile, and those speeds are not to be trusted "
        "(`--fresh` on an idle machine measures again)"
    ]


def _steps(sitting: Sitting) -> tuple[StepRecord, ...]:
    wanted: list[Step[Any]] = [*sitting.menu.making()]
    if sitting.menu.forecast is not None:
        wanted += sitting.menu.forecast.steps()
    wanted += sitting.menu.live(sitting.grid)
    wanted += [c.compare for c in sitting.grid if c.compare is not None]
    records = []
    ran = set(sitting.outcomes.ran)
    for step in closure(wanted).values():
        artifact = sitting.outcomes.artifacts.get(step.key)
        failure = sitting.outcomes.failures.get(step.key)
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
