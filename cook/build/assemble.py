"""From what ran to the record: figures, quality, speedups, and the pick."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from cook.build.choose import Aim, Limits, confirm, over_the_limits, pick
from cook.build.decide import Decision, reason_not_live
from cook.build.drafts import draft_records, reference_quality, why_not
from cook.build.forecast import NO_OVERHEADS, Forecaster
from cook.build.layout import (
    Configuration,
    ForecastPlan,
    Layout,
    LiveChecks,
    checks_of,
    interleaved,
)
from cook.build.replayed import replayed
from cook.build.rival_counts import rival_counts
from cook.build.slot_speeds import InParallel
from cook.engines.server_api import DepthCount
from cook.graph.execute import Outcomes, closure
from cook.graph.step import Step
from cook.provenance import HubOrigin, cook_version, machine
from cook.recipe.load import LoadedRecipe
from cook.recipe.rules import some
from cook.recipe.schema import Recipe, ScoreSpec
from cook.record.measured import (
    ImatrixCoverage,
    LayerCoverage,
    NoiseFloor,
    Prediction,
    Rejection,
)
from cook.record.objective import Objective
from cook.record.prompt_runs import PromptRun
from cook.record.record import (
    DISTURBED,
    SCHEMA_VERSION,
    Candidate,
    CandidateKey,
    ChainFigures,
    Doubt,
    Draft,
    Excluded,
    Pick,
    Record,
    SampledChain,
    Serving,
    StepRecord,
)
from cook.scoring.figures import by_category, by_prompt, figures, merge_repeats, output_check
from cook.scoring.price import counted_alike
from cook.scoring.rounds import Round, Rounds
from cook.scoring.sampled import SampledPrediction
from cook.scoring.simulate import PROFILES, RULES
from cook.steps.live import LiveStep

if TYPE_CHECKING:
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
    parallel: InParallel | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def baselines(self) -> tuple[Configuration, ...]:
        if self.decision is not None:
            return self.decision.baselines
        return tuple(layout.baseline for layout in self.layouts if layout.baseline is not None)

    @property
    def forecasts(self) -> tuple[ForecastPlan, ...]:
        return tuple(layout.forecast for layout in self.layouts if layout.forecast is not None)

    def live(self) -> list[LiveStep]:
        """The live steps, each once, in the order in which they ran: the calibration's first."""
        steps = self.decision.steps if self.decision else ()
        asked = interleaved([*self.baselines, *self.grid]) if not steps else ()
        return list({step.key: step for step in (*steps, *asked)}.values())

    @cached_property
    def forecasters(self) -> dict[str, Forecaster]:
        """By engine; each reads a replay once, whoever asks."""
        return {plan.engine.name: Forecaster(plan, self.outcomes) for plan in self.forecasts}

    @property
    def aim(self) -> Aim:
        """What the recipe asks for."""
        return aim_of(self.recipe)


def aim_of(recipe: Recipe) -> Aim:
    """The ``pick`` of ``recipe``, with the weights that its figures have."""
    wanted = recipe.pick
    weights = recipe.score.weights if recipe.score else None
    return Aim(Objective(wanted.maximize), wanted.confidence, wanted.margin, weights)


def assemble(finished: Finished) -> Record:
    """The record of a build. Pure: reads only what is in ``finished``."""
    outcomes, recipe = finished.outcomes, finished.recipe
    layout = finished.layouts[0]  # target and prompts are the same for every engine
    drafts = draft_records(finished.layouts, outcomes)
    results = _live_results(finished)
    candidates = _candidates(finished, results)
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
        target_digest=layout.target.digest if layout.target else None,
        target_description=layout.target_description,
        defaults={m.engine.name: dict(m.engine.defaults) for m in finished.layouts},
        prompts=layout.prompts.name if layout.prompts else "",
        prompts_sha256=layout.prompts.sha256 if layout.prompts else "",
        max_tokens=recipe.score.max_tokens if recipe.score else 0,
        temperature=recipe.score.sampling.to_sampling().temperature if recipe.score else 0.0,
        source_quality=reference_quality(layout, outcomes),
        drafts=drafts,
        candidates=candidates,
        left_out=finished.left_out,
        pick=_pick(finished, candidates, drafts),
        warnings=_warnings(finished, candidates),
        steps=_steps(finished),
        noise=_noise(finished),
        calibrations=tuple(finished.decision.fitted.values()) if finished.decision else (),
        imatrix=imatrix_coverage(layout.imatrix, outcomes),
        disturbed=len(_disturbed(finished)[0]),
        sources=finished.origins,
        replayed=tuple(replayed(finished.forecasts, outcomes)),
        slots=finished.parallel.speeds if finished.parallel is not None else (),
        chains=_chains(finished),
    )


@dataclass(frozen=True)
class LiveResult:
    """The requests of a candidate's live run, repeats merged; or, without them, the reason."""

    runs: tuple[PromptRun, ...] = ()
    reason: str | None = None


Results = Mapping[CandidateKey, LiveResult]


def _live_results(finished: Finished) -> Results:
    """Of every candidate, those that were not to run live included."""
    results: dict[CandidateKey, LiveResult] = {}
    ran = {c.key: c for c in (*finished.baselines, *finished.grid)}
    for configuration in ran.values():
        outcomes = [finished.outcomes.result(step) for step in configuration.rounds]
        rounds = [outcome.runs for outcome in outcomes if outcome is not None]
        pairs = zip(configuration.rounds, outcomes, strict=True)
        failed = [step for step, outcome in pairs if outcome is None]
        if failed:
            result = LiveResult(reason=why_not(failed[0], finished.outcomes))
        else:
            runs = merge_repeats(_counted_alike(finished, configuration, r) for r in rounds)
            result = LiveResult(runs, None if runs else "no request had a usable reply")
        results[configuration.key] = result
    # A predicted candidate that did not go live is shown all the same.
    over = _over_the_limits(finished)
    for configuration in _rest(finished):
        name = configuration.draft.name if configuration.draft is not None else ""
        reason = over.get(name) or reason_not_live(configuration, finished.decision)
        results[configuration.key] = LiveResult(reason=reason)
    return results


def _counted_alike(
    finished: Finished, configuration: Configuration, runs: Sequence[PromptRun]
) -> tuple[PromptRun, ...]:
    """With the draft's reading of the prompt apart from decoding, where that is known."""
    key = configuration.key
    if forecaster := finished.forecasters.get(key.engine):
        return forecaster.counted_alike(key, runs)
    profile = PROFILES[configuration.rounds[0].engine.flavour]
    return tuple(counted_alike(run, None, profile) for run in runs)


def _rest(finished: Finished) -> list[Configuration]:
    """Candidates that did not go live: predicted ones, what left the race, or is over a limit."""
    live = {c.key for c in (*finished.baselines, *finished.grid)}
    rest = [c for layout in finished.layouts for c in layout.grid if c.key not in live]
    if finished.decision is not None:
        return rest
    over = _over_the_limits(finished)
    return [c for c in rest if c.draft is not None and c.draft.name in over]


def _over_the_limits(finished: Finished) -> dict[str, str]:
    """Draft -> why it may not win."""
    limits = Limits(**finished.recipe.pick.subject_to.model_dump())
    return over_the_limits(draft_records(finished.layouts, finished.outcomes), limits)


def _candidates(finished: Finished, results: Results) -> tuple[Candidate, ...]:
    """No draft, what went live, and the rest."""
    score = finished.recipe.score
    if score is None or not finished.baselines:
        return ()
    # What a speedup is against: the fastest no draft of any engine.
    bare = [(c.key, r.runs) for c in finished.baselines if (r := results[c.key]).runs]
    speeds = [(figures(runs, score.weights).end_to_end_speed, key) for key, runs in bare]
    known = [(speed, key) for speed, key in speeds if speed]
    base = max(known, key=lambda pair: pair[0])[1] if known else None
    live = _live_rounds(finished, Objective.END_TO_END_SPEED)
    checks = checks_of(finished.layouts, finished.grid)
    return tuple(
        _candidate(finished, score, configuration, results, base, live, checks)
        for configuration in (*finished.baselines, *finished.grid, *_rest(finished))
    )


def _candidate(
    finished: Finished,
    score: ScoreSpec,
    configuration: Configuration,
    results: Results,
    base: CandidateKey | None,
    rounds: Rounds[CandidateKey],
    every_check: Mapping[CandidateKey, LiveChecks],
) -> Candidate:
    """``base``: the no draft that speedups are against."""
    result = results[configuration.key]
    outcomes, runs = finished.outcomes, result.runs
    live = figures(runs, score.weights) if runs else None
    speedup = decode_speedup = interval = None
    if live is not None and base is not None:
        # As if at the same time: not all run in every round, and the machine drifts.
        mine, reference = (
            figures(rounds.merged.get(key) or results[key].runs, score.weights)
            for key in (configuration.key, base)
        )
        speedup = _ratio(mine.end_to_end_speed, reference.end_to_end_speed)
        decode_speedup = _ratio(mine.decode_speed, reference.decode_speed)
        if configuration.key != base:
            interval = rounds.ratio(configuration.key, base, finished.aim.confidence)
    compared = outcomes.result(configuration.compare) if configuration.compare else None
    checks = every_check.get(configuration.key) if live is not None else None
    control = outcomes.result(checks.control) if checks else None
    uncontrolled = why_not(checks.control, outcomes) if checks and control is None else None
    counts = outcomes.result(checks.counts) if checks else None
    counts_reason = _why_not_counted(checks, outcomes) if checks else None
    if configuration.key.ngram is not None and live is not None:
        forecaster = finished.forecasters.get(configuration.key.engine)
        counts = rival_counts(configuration, forecaster) if forecaster is not None else None
        counts_reason = None if counts else "the engine returns no token ids"
    first = outcomes.result(configuration.rounds[0])
    peaks = [r.peak_rss_bytes for s in configuration.rounds if (r := outcomes.result(s))]
    key = configuration.key
    step = configuration.rounds[0]
    return Candidate(
        name=configuration.name,
        engine=key.engine,
        draft=key.draft,
        settings=key.settings,
        cache_type=key.cache_type,
        live=live,
        reason=result.reason,
        categories=by_category(runs),
        speedup=speedup,
        speedup_interval=interval,
        decode_speedup=decode_speedup,
        output=output_check(compared, control, uncontrolled) if compared else None,
        server_peak_rss_bytes=max(peaks, default=None),
        command=first.command if first else (),
        predicted=_prediction(finished, score, key, runs, rounds),
        counts=counts if counts and counts.requests else None,
        counts_reason=counts_reason,
        prompts=by_prompt(runs) if runs else None,
        serving=Serving(step.context, step.target_args, step.draft_args, step.draft_context),
        repeats=len({s.repeat for s in configuration.rounds if outcomes.result(s)}) or None,
        log=first.log if first else None,
        ngram=key.ngram,
    )


def _ratio(value: float | None, reference: float | None) -> float | None:
    """``value / reference`` where both exist."""
    return value / reference if value is not None and reference else None


def _why_not_counted(checks: LiveChecks, outcomes: Outcomes) -> str | None:
    recount = outcomes.result(checks.counts)
    if recount is None:
        return why_not(checks.counts, outcomes)
    if recount.requests:
        return None
    return (
        f"the engine returns no token ids, and the tokens of {recount.passed_over} replies cannot"
        " be told from their text"
    )


def _noise(finished: Finished) -> tuple[NoiseFloor, ...]:
    if finished.decision is None:
        return ()
    confidence = finished.recipe.pick.confidence
    times = NormalDist().inv_cdf((1 + confidence) / 2)
    return tuple(
        NoiseFloor(
            engine=engine,
            speed=noise.timing.half_width(confidence) if noise.timing else None,
            passes=noise.timing.passes if noise.timing else None,
            confidence=confidence,
            acceptance=times * noise.acceptance if noise.acceptance is not None else None,
        )
        for engine, noise in finished.decision.noise.items()
    )


def _prediction(
    finished: Finished,
    score: ScoreSpec,
    key: CandidateKey,
    live: tuple[PromptRun, ...],
    rounds: Rounds[CandidateKey],
) -> Prediction | None:
    """The forecast of a candidate, and how far off its live run shows it to be."""
    decision = finished.decision
    if decision is None:
        return None
    forecast = next((f for f in decision.reported if f.key == key), None)
    if forecast is None:
        return None
    off_by = interval = off_by_tokens = decode_off_by = timed_off_by = None
    fitted = decision.fitted.get(key.engine)
    judged = [run for run in live if fitted is None or run.id not in fitted.prompts]
    seen = figures(judged, score.weights) if judged else None
    if seen is not None and seen.end_to_end_speed:
        ids = {run.id for run in judged}
        runs = [run for run in forecast.runs if run.id in ids]
        guess = figures(runs, score.weights)
        off_by = _less_one(_ratio(guess.end_to_end_speed, seen.end_to_end_speed))
        decode_off_by = _less_one(_ratio(guess.decode_speed, seen.decode_speed))
        off_by_tokens = (guess.acceptance_length or 1) / (seen.acceptance_length or 1) - 1
        interval = rounds.off_by(key, runs, finished.aim.confidence)
        timed = finished.forecasters[key.engine].forecast_of(key, NO_OVERHEADS, ids)
        if timed is not None:
            alone = figures(timed.runs, score.weights).decode_speed
            timed_off_by = _less_one(_ratio(alone, seen.decode_speed))
    spent = forecast.priced.breakdown
    return Prediction(
        figures=figures(forecast.runs, score.weights),
        verify_s=spent.verify_s,
        draft_s=spent.draft_s,
        mirror_s=spent.mirror_s,
        sample_s=spent.sample_s,
        overhead_s=spent.overhead_s,
        probability_best=decision.final.probability.get(key),
        off_by=off_by,
        off_by_interval=interval,
        off_by_tokens=off_by_tokens,
        decode_off_by=decode_off_by,
        timed_off_by=timed_off_by,
        judged=len(judged) or None,
        by_depth=tuple(DepthCount(d, *counts) for d, counts in enumerate(forecast.by_depth, 1)),
        categories=by_category(forecast.runs),
        prompts=by_prompt(forecast.runs),
        rejection=_rejection(decision.rejection.get(key)),
    )


def _chains(finished: Finished) -> tuple[SampledChain, ...]:
    """What is forecast under the other sampling chains; empty where none is asked for."""
    score, decision = finished.recipe.score, finished.decision
    if score is None or decision is None or not decision.chains:
        return ()
    return tuple(
        SampledChain(
            engine,
            found.sampling,
            tuple(
                ChainFigures(
                    one.name,
                    one.key,
                    figures(one.runs, score.weights),
                    by_prompt(one.runs),
                    _rejection(found.rejection.get(one.key)),
                )
                for one in found.forecasts
            ),
            found.reason,
        )
        for engine, chains in decision.chains.items()
        for found in chains
    )


def _less_one(ratio: float | None) -> float | None:
    return ratio - 1 if ratio is not None else None


def _rejection(sampled: SampledPrediction | None) -> Rejection | None:
    if sampled is None:
        return None
    return Rejection(
        sampled.draft_n, sampled.draft_n_accepted, sampled.cycles, sampled.decode_tokens_per_s
    )


def _live_rounds(finished: Finished, objective: Objective) -> Rounds[CandidateKey]:
    """What ran live beside each other."""
    weights = finished.aim.weights
    if finished.decision is not None:
        return replace(finished.decision.live, objective=objective)
    rounds: dict[tuple[int, int], dict[CandidateKey, tuple[PromptRun, ...]]] = {}
    for configuration in (*finished.baselines, *finished.grid):
        for step in configuration.rounds:
            if outcome := finished.outcomes.result(step):
                beside = rounds.setdefault((step.repeat, step.round), {})
                beside[configuration.key] = outcome.runs
    found = tuple(Round(share, runs) for (_, share), runs in rounds.items())
    return Rounds(found, objective, weights)


def _pick(finished: Finished, candidates: Sequence[Candidate], drafts: Sequence[Draft]) -> Pick:
    aim, decision = finished.aim, finished.decision
    live = _live_rounds(finished, aim.objective)
    if decision is not None:
        return confirm(
            decision.predicted,
            decision.final,
            candidates,
            aim=aim,
            live=live,
            doubts=decision.doubts,
            cost=decision.cost,
            look=decision.look,
        )
    return pick(
        candidates,
        {draft.quant: draft for draft in drafts},
        aim=aim,
        limits=Limits(**finished.recipe.pick.subject_to.model_dump()),
        live=live,
        doubts={
            configuration.key: Doubt(
                DISTURBED, f"other programs kept {outcome.others_cores:.1f} cores busy"
            )
            for configuration in (*finished.baselines, *finished.grid)
            for step in configuration.rounds
            if (outcome := finished.outcomes.result(step)) is not None and outcome.warnings
        },
    )


def _warnings(finished: Finished, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    warnings = [w for layout in finished.layouts for w in layout.warnings]
    made = (s for layout in finished.layouts for s in layout.making())
    warnings += by_cause(
        (step.label, warning)
        for step in made
        for warning in getattr(finished.outcomes.result(step), "warnings", ())
    )
    if finished.decision is not None:
        warnings += [
            f"{engine}: nothing could be predicted: {reason}"
            for engine, reason in finished.decision.silent.items()
        ]
    warnings += _unlike(finished, candidates)
    warnings += _contention(finished)
    return tuple(dict.fromkeys(warnings))


NAMED = 12
"""Steps that a warning names at most."""


def by_cause(warnings: Iterable[tuple[str, str]]) -> list[str]:
    """(step, warning) as one line a warning: what several steps say is told once, with their
    names."""
    steps: dict[str, dict[str, None]] = {}
    for label, warning in warnings:
        steps.setdefault(warning, {})[label] = None
    return [f"{some([*labels], NAMED)}: {warning}" for warning, labels in steps.items()]


def _unlike(finished: Finished, candidates: Sequence[Candidate]) -> list[str]:
    """A warning for each engine whose decode speeds hold what those of others do not."""
    late = {
        layout.engine.name
        for layout in finished.layouts
        if RULES[PROFILES[layout.engine.flavour]].reads_late
    }
    unlike = {
        c.engine
        for c in candidates
        if c.engine in late and c.live and c.live.drafted and c.live.draft_prompt_ms is None
    }
    return [
        f"{name}: the server counts the draft's reading of the prompt as decoding, and neither its "
        "answers nor timings tell how long that took: decode speeds with a draft hold it, "
        "end-to-end speeds are right (`method: replay` times it)"
        for name in sorted(unlike)
    ]


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
    timed += finished.parallel.steps if finished.parallel is not None else ()
    results = [r for s in timed if (r := finished.outcomes.result(s)) is not None]
    return [r.others_cores for r in results if r.warnings], len(results)


def _steps(finished: Finished) -> tuple[StepRecord, ...]:
    wanted: list[Step[Any]] = [step for layout in finished.layouts for step in layout.making()]
    wanted += [step for forecast in finished.forecasts for step in forecast.steps()]
    wanted += finished.live()
    wanted += finished.parallel.steps if finished.parallel is not None else ()
    # Of finalists that nobody would serve outputs are not compared.
    checks: list[Step[Any]] = [c.compare for c in finished.grid if c.compare is not None]
    checks += [s for c in checks_of(finished.layouts, finished.grid).values() for s in c.steps()]
    known = finished.outcomes.artifacts.keys() | finished.outcomes.failures.keys()
    wanted += [step for step in checks if step.key in known]
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
