"""From what ran to the record: figures, quality, speedups, and the pick."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cook.build.checks import Checks, checks_of, checks_of_all
from cook.build.choose import Limits, pick
from cook.build.confirm import confirm
from cook.build.drafts import draft_records, reference_quality, why_not
from cook.build.finalists import Decision, reason_not_live
from cook.build.layout import Configuration, ForecastPlan, Layout, interleaved
from cook.engines.server_api import DepthCount
from cook.graph.execute import Outcomes, closure
from cook.graph.step import Step
from cook.provenance import HubOrigin, cook_version, machine
from cook.recipe.load import LoadedRecipe
from cook.recipe.schema import Recipe
from cook.record.measured import (
    CountCheck,
    ImatrixCoverage,
    Interval,
    LayerCoverage,
    NoiseFloor,
    Prediction,
    Rejection,
)
from cook.record.outcomes import SelfCheckOutcome
from cook.record.prompt_runs import PromptRun
from cook.record.record import (
    SCHEMA_VERSION,
    Candidate,
    Draft,
    Excluded,
    Pick,
    Record,
    Serving,
    StepRecord,
)
from cook.scoring.figures import by_category, by_prompt, figures, merge_repeats, output_check
from cook.scoring.intervals import paired_ratio
from cook.scoring.sampled import SampledPrediction
from cook.steps.live import LiveStep

if TYPE_CHECKING:
    from cook.graph.execute import Outcomes
    from cook.steps.imatrix import ImatrixStep


@dataclass(frozen=True)
class Finished:
    """One build as it went: what was asked, what was left out, what came of every step."""

    loaded: LoadedRecipe
    demo: bool
    layouts: tuple[Layout, ...]
    grid: tuple[Configuration, ...]
    left_out: tuple[Excluded, ...]
    outcomes: Outcomes
    decision: Decision | None = None
    origins: tuple[HubOrigin, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def baselines(self) -> tuple[Configuration, ...]:
        return tuple(layout.baseline for layout in self.layouts if layout.baseline is not None)

    @property
    def forecasts(self) -> tuple[ForecastPlan, ...]:
        return tuple(layout.forecast for layout in self.layouts if layout.forecast is not None)

    def live(self) -> list[LiveStep]:
        """The live steps, each once, in the order in which they ran: the calibration's first."""
        calibration = self.decision.calibration if self.decision else ()
        steps = (*calibration, *interleaved([*self.baselines, *self.grid]))
        return list({step.key: step for step in steps}.values())


def assemble(finished: Finished) -> Record:
    """The record of a build. Pure: reads only what is in ``finished``."""
    outcomes, recipe = finished.outcomes, finished.recipe
    layout = finished.layouts[0]  # target and prompts are the same for every engine
    drafts = draft_records(finished.layouts, outcomes)
    runs = _runs(finished)
    candidates = _candidates(finished, runs)
    return Record(
        schema_version=SCHEMA_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engines={m.engine.name: m.engine.identity for m in finished.layouts},
        recipe=recipe.name,
        recipe_sha256=hashlib.sha256(finished.loaded.text.encode()).hexdigest(),
        recipe_text=finished.loaded.text,
        demo=finished.demo,
        target=str(layout.target.path) if layout.target else "",
        target_bytes=layout.target.size_bytes if layout.target else 0,
        prompts=layout.prompts.name if layout.prompts else "",
        prompts_sha256=layout.prompts.sha256 if layout.prompts else "",
        max_tokens=recipe.score.max_tokens if recipe.score else 0,
        temperature=recipe.score.sampling.temperature if recipe.score else 0.0,
        source_quality=reference_quality(layout, outcomes),
        drafts=drafts,
        candidates=candidates,
        left_out=finished.left_out,
        pick=_pick(finished, candidates, drafts, runs),
        warnings=_warnings(finished),
        steps=_steps(finished),
        noise=_noise(finished),
        imatrix=imatrix_coverage(layout.imatrix, outcomes),
        disturbed=len(_disturbed(finished)[0]),
        sources=finished.origins,
    )


Runs = Mapping[str, tuple[PromptRun, ...] | str]
"""Per configuration: its requests, or the reason there are none."""


def _runs(finished: Finished) -> Runs:
    found: dict[str, tuple[PromptRun, ...] | str] = {}
    for configuration in (*finished.baselines, *finished.grid):
        rounds = []
        reason = None
        for step in configuration.rounds:
            outcome = finished.outcomes.result(step)
            if outcome is None:
                reason = why_not(step, finished.outcomes)
                break
            rounds.append(outcome.runs)
        found[configuration.name] = reason if reason is not None else merge_repeats(rounds)
    return found


def _candidates(finished: Finished, runs: Runs) -> tuple[Candidate, ...]:
    if not finished.baselines:
        return ()
    live = {c.name for c in (*finished.baselines, *finished.grid)}
    # A predicted candidate that did not go live is shown all the same.
    grids = [c for layout in finished.layouts for c in layout.grid] if finished.decision else []
    rest = [c for c in grids if c.name not in live]
    best = _best_baseline(finished, runs)
    every = (*finished.baselines, *finished.grid, *rest)
    return tuple(_candidate(finished, configuration, runs, best) for configuration in every)


def _best_baseline(finished: Finished, runs: Runs) -> tuple[PromptRun, ...] | None:
    """The requests of the fastest no draft of any engine: what a speedup is against."""
    score = finished.recipe.score
    weights = score.weights if score else None
    ran = [r for c in finished.baselines if not isinstance(r := runs[c.name], str)]
    ran = [r for r in ran if figures(r, weights).end_to_end_speed]
    return max(ran, key=lambda r: figures(r, weights).end_to_end_speed, default=None)


def _candidate(
    finished: Finished,
    configuration: Configuration,
    runs: Runs,
    base: tuple[PromptRun, ...] | None,
) -> Candidate:
    score = finished.recipe.score
    assert score is not None, "candidates come from a score"
    outcomes = finished.outcomes
    mine = runs.get(configuration.name, reason_not_live(configuration, finished.decision))
    live = None if isinstance(mine, str) else figures(mine, score.weights)
    speedup = decode_speedup = None
    interval: Interval | None = None
    if live is not None and base is not None and not isinstance(mine, str):
        reference = figures(base, score.weights)
        speedup = live.end_to_end_speed / reference.end_to_end_speed
        decode_speedup = live.decode_speed / reference.decode_speed
        if mine is not base:
            confidence = finished.recipe.pick.confidence
            interval = paired_ratio(mine, base, "end_to_end_speed", score.weights, confidence)
    compared = outcomes.result(configuration.compare) if configuration.compare else None
    layout = next(
        m for m in finished.layouts if m.engine.name == configuration.rounds[0].engine.name
    )
    checks = checks_of(layout, configuration) if live is not None else None
    control = outcomes.result(checks.control) if checks and checks.control else None
    counts = outcomes.result(checks.counts) if checks else None
    first = outcomes.result(configuration.rounds[0])
    peaks = [r.peak_rss_bytes for s in configuration.rounds if (r := outcomes.result(s))]
    return Candidate(
        name=configuration.name,
        engine=configuration.rounds[0].engine.name,
        draft=configuration.draft.name if configuration.draft else None,
        settings=configuration.settings,
        cache_type=configuration.cache_type,
        live=live,
        reason=mine if isinstance(mine, str) else None,
        categories={} if isinstance(mine, str) else by_category(mine),
        speedup=speedup,
        speedup_interval=interval,
        decode_speedup=decode_speedup,
        output=output_check(compared, control) if compared else None,
        server_peak_rss_bytes=max(peaks, default=None),
        command=(first.serve or first.command) if first else (),
        predicted=_prediction(finished, configuration, mine),
        counts=_count_check(counts) if counts and counts.requests else None,
        counts_reason=_why_not_counted(checks, outcomes) if checks else None,
        prompts=None if isinstance(mine, str) else by_prompt(mine),
        serving=_serving(configuration.rounds[0]),
    )


def _serving(step: LiveStep) -> Serving:
    return Serving(step.context, step.target_args, step.draft_args)


def _count_check(found: SelfCheckOutcome) -> CountCheck:
    return CountCheck(
        requests=found.requests,
        exact=found.exact,
        live_drafted=found.live_drafted,
        live_accepted=found.live_accepted,
        replay_drafted=found.fast_drafted,
        replay_accepted=found.fast_accepted,
        passed_over=found.passed_over,
    )


def _why_not_counted(checks: Checks, outcomes: Outcomes) -> str | None:
    found = outcomes.result(checks.counts)
    if found is None:
        return why_not(checks.counts, outcomes)
    if found.requests:
        return None
    return (
        f"the engine returns no token ids, and the tokens of {found.passed_over} replies cannot"
        " be told from their text"
    )


def _noise(finished: Finished) -> tuple[NoiseFloor, ...]:
    if finished.decision is None:
        return ()
    confidence = finished.recipe.pick.confidence
    return tuple(
        NoiseFloor(
            engine=engine,
            speed=found.timing.half_width(confidence) if found.timing else None,
            passes=found.timing.passes if found.timing else None,
            confidence=confidence,
            acceptance=found.acceptance,
        )
        for engine, found in finished.decision.noise.items()
    )


def _prediction(
    finished: Finished, configuration: Configuration, live: tuple[PromptRun, ...] | str
) -> Prediction | None:
    """The forecast of a candidate, and how far off its live run shows it to be."""
    decision, score = finished.decision, finished.recipe.score
    if decision is None or score is None:
        return None
    forecast = next((f for f in decision.reported if f.name == configuration.name), None)
    if forecast is None:
        return None
    found = figures(forecast.runs, score.weights)
    off_by = interval = off_by_tokens = decode_off_by = seen = None
    if not isinstance(live, str):
        seen = figures(live, score.weights)
    if seen is not None and seen.end_to_end_speed and not isinstance(live, str):
        off_by = found.end_to_end_speed / seen.end_to_end_speed - 1
        decode_off_by = found.decode_speed / seen.decode_speed - 1
        off_by_tokens = (found.acceptance_length or 1) / (seen.acceptance_length or 1) - 1
        confidence = finished.recipe.pick.confidence
        interval = paired_ratio(forecast.runs, live, "end_to_end_speed", score.weights, confidence)
    spent = forecast.breakdown
    return Prediction(
        figures=found,
        verify_s=spent.verify_s,
        draft_s=spent.draft_s,
        mirror_s=spent.mirror_s,
        sample_s=spent.sample_s,
        overhead_s=spent.overhead_s,
        probability_best=decision.choice.probability.get(configuration.name),
        off_by=off_by,
        off_by_interval=interval,
        off_by_tokens=off_by_tokens,
        decode_off_by=decode_off_by,
        by_depth=tuple(DepthCount(d, *counts) for d, counts in enumerate(forecast.by_depth, 1)),
        categories=by_category(forecast.runs),
        prompts=by_prompt(forecast.runs),
        rejection=_rejection(decision.rejection.get(configuration.name)),
    )


def _rejection(found: SampledPrediction | None) -> Rejection | None:
    if found is None:
        return None
    return Rejection(found.draft_n, found.draft_n_accepted, found.cycles, found.decode_tokens_per_s)


def _pick(
    finished: Finished, candidates: Sequence[Candidate], drafts: Sequence[Draft], runs: Runs
) -> Pick:
    asked = finished.recipe.pick
    weights = finished.recipe.score.weights if finished.recipe.score else None

    def ratio(first: Candidate, second: Candidate) -> Interval | None:
        one, other = runs.get(first.name), runs.get(second.name)
        if one is None or other is None or isinstance(one, str) or isinstance(other, str):
            return None
        return paired_ratio(one, other, asked.maximize, weights, asked.confidence)

    by_name = {draft.quant: draft for draft in drafts}
    if finished.decision is not None:
        return confirm(
            finished.decision.choice,
            candidates,
            by_name,
            maximize=asked.maximize,
            confidence=asked.confidence,
            ratio_interval=ratio,
        )
    return pick(
        candidates,
        by_name,
        maximize=asked.maximize,
        limits=Limits(**asked.subject_to.model_dump()),
        confidence=asked.confidence,
        ratio_interval=ratio,
    )


def _warnings(finished: Finished) -> tuple[str, ...]:
    told = [w for layout in finished.layouts for w in layout.warnings]
    for step in (s for layout in finished.layouts for s in layout.making()):
        result = finished.outcomes.result(step)
        told += [f"{step.label}: {w}" for w in getattr(result, "warnings", ())]
    for live in finished.live():
        if outcome := finished.outcomes.result(live):
            told += [f"{live.label}: left out {lost}" for lost in outcome.lost]
    if finished.decision is not None:
        told += [
            f"{engine}: nothing could be predicted: {reason}"
            for engine, reason in finished.decision.silent.items()
        ]
    told += _contention(finished)
    return tuple(dict.fromkeys(told))


def _contention(finished: Finished) -> list[str]:
    """One warning for all timings that other programs disturbed."""
    cores, timings = _disturbed(finished)
    if not cores:
        return []
    return [
        f"{len(cores)} of {timings} timings were disturbed: other programs kept up to "
        f"{max(cores):.1f} cores busy meanwhile, and those speeds are not to be trusted "
        "(`--fresh` on an idle machine measures again)"
    ]


def _disturbed(finished: Finished) -> tuple[list[float], int]:
    """Cores taken by other programs in each disturbed timing, and the number of all timings."""
    timed: list[Step[Any]] = [*finished.live()]
    timed += [s for forecast in finished.forecasts for s in forecast.steps() if s.timed]
    results = [r for s in timed if (r := finished.outcomes.result(s)) is not None]
    return [r.others_cores for r in results if r.warnings], len(results)


def _steps(finished: Finished) -> tuple[StepRecord, ...]:
    wanted: list[Step[Any]] = [step for layout in finished.layouts for step in layout.making()]
    wanted += [step for forecast in finished.forecasts for step in forecast.steps()]
    wanted += finished.live()
    wanted += [c.compare for c in finished.grid if c.compare is not None]
    wanted += [s for c in checks_of_all(finished.layouts, finished.grid) for s in c.steps()]
    records = []
    ran = set(finished.outcomes.ran)
    for step in closure(wanted).values():
        artifact = finished.outcomes.artifacts.get(step.key)
        failure = finished.outcomes.failures.get(step.key)
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


_LAYER = re.compile(r"blk\.(\d{1,6})\.")


def imatrix_coverage(step: ImatrixStep | None, outcomes: Outcomes) -> ImatrixCoverage | None:
    """From the step's artifact; None where no matrix was made."""
    from cook.formats.gguf import read_gguf
    from cook.formats.imatrix_file import coverage, read_imatrix, with_experts

    result = outcomes.result(step) if step is not None else None
    if step is None or result is None:
        return None
    matrix = read_imatrix(outcomes.artifact(step).file(step.file_name))
    matrix = with_experts(matrix, read_gguf(step.model.path).tensors)
    layers: dict[int, LayerCoverage] = {}
    for entry in coverage(matrix):
        match = _LAYER.match(entry.name)
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
