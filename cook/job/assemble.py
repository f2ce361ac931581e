"""From what ran to the record: figures, quality, speedups, and the pick."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from cook.engines.server_api import DepthCount
from cook.graph.execute import Outcomes, closure
from cook.graph.step import Step
from cook.job.counts import replayed, rival_counts
from cook.job.decide import DECODE, WHOLE, Aim, Decision
from cook.job.drafts import draft_records, reference_quality, why_not
from cook.job.layout import Checks, Configuration, ForecastPlan, Layout
from cook.job.sentence import nothing_qualifies, pick_sentence
from cook.job.slot_speeds import InParallel
from cook.job.what_if import rejection, under
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
    SCHEMA_VERSION,
    Candidate,
    CandidateKey,
    ChainFigures,
    Excluded,
    Pick,
    Record,
    SampledChain,
    Serving,
    StepRecord,
)
from cook.scoring.compare import interval, paired
from cook.scoring.figures import by_category, by_prompt, figures, output_check
from cook.scoring.sampled import SampledPrediction
from cook.scoring.simulate import PROFILES, RULES
from cook.steps.checks import SelfCheckStep
from cook.steps.deal import DealStep

if TYPE_CHECKING:
    from cook.steps.imatrix import ImatrixStep


@dataclass(frozen=True)
class Finished:
    """One build as it went: what was asked, what was left out, what came of every step."""

    loaded: LoadedRecipe
    demo: bool
    layouts: tuple[Layout, ...]
    left_out: tuple[Excluded, ...]
    outcomes: Outcomes
    decision: Decision | None = None
    origins: tuple[HubOrigin, ...] = ()
    parallel: InParallel | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def forecasts(self) -> tuple[ForecastPlan, ...]:
        return tuple(layout.forecast for layout in self.layouts if layout.forecast is not None)

    @property
    def deals(self) -> tuple[DealStep, ...]:
        """The blocks that were dealt, in their order."""
        return tuple(self.decision.dealing.steps) if self.decision is not None else ()

    @property
    def aim(self) -> Aim:
        """What the recipe asks for."""
        return aim_of(self.recipe)

    def layout_of(self, configuration: Configuration) -> Layout:
        """That of its engine."""
        return next(m for m in self.layouts if m.engine.name == configuration.key.engine)


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
    candidates = _candidates(finished)
    return Record(
        schema_version=SCHEMA_VERSION,
        cook=cook_version(),
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=tuple(sys.argv),
        machine=machine(),
        engines={m.engine.name: m.engine.identity for m in finished.layouts},
        recipe=recipe.name,
        recipe_sha256=finished.loaded.sha256,
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
        pick=_pick(finished, candidates),
        warnings=_warnings(finished, candidates),
        steps=_steps(finished),
        noise=_noise(finished),
        factors=finished.decision.factors() if finished.decision else (),
        together=finished.decision.dealing.together
        if finished.decision and finished.deals
        else None,
        imatrix=imatrix_coverage(layout.imatrix, outcomes),
        disturbed=len(_disturbed(finished)[0]),
        sources=finished.origins,
        replayed=tuple(replayed(finished.forecasts, outcomes)),
        slots=finished.parallel.speeds if finished.parallel is not None else (),
        chains=_chains(finished),
    )


def _candidates(finished: Finished) -> tuple[Candidate, ...]:
    """No draft, what ran live, and the rest."""
    decision, score = finished.decision, finished.recipe.score
    if score is None or decision is None:
        return ()
    ran = {c.key: c for c in (*decision.baselines, *decision.finalists)}
    rest = [c for layout in finished.layouts for c in layout.grid if c.key not in ran]
    drawn: dict[CandidateKey, SampledPrediction] = {}
    for forecaster in decision.forecasters.values():
        drawn |= rejection(forecaster)
    return tuple(
        _candidate(finished, decision, score, c, drawn.get(c.key)) for c in (*ran.values(), *rest)
    )


def _candidate(
    finished: Finished,
    decision: Decision,
    score: ScoreSpec,
    configuration: Configuration,
    drawn: SampledPrediction | None,
) -> Candidate:
    key, outcomes, aim = configuration.key, finished.outcomes, finished.aim
    row, base = decision.row(key), decision.base
    runs = row.live if row is not None else ()
    live = figures(runs, score.weights) if runs else None
    speedup = decode_speedup = between = None
    if row is not None and base is not None and runs:
        logs = [paired(row, base, one, score.weights) for one in (WHOLE, DECODE)]
        speedup, decode_speedup = (None if log is None else math.exp(log) for log in logs)
        if key != base.key:
            between = interval(runs, base.live, WHOLE, score.weights, aim.confidence, about=logs[0])
    layout, dealt = finished.layout_of(configuration), decision.dealing.dealt(key)
    started = list(dealt.outcomes(outcomes.result)) if dealt is not None else []
    checks = Checks()
    if dealt is not None:
        checks = layout.checks(
            configuration, dealt, decision.dealing.dealt(CandidateKey(key.engine))
        )
    compared = outcomes.result(checks.compare) if checks.compare else None
    control = outcomes.result(checks.control) if checks.control else None
    uncontrolled = why_not(checks.control, outcomes) if checks.control and not control else None
    counts = outcomes.result(checks.counts) if checks.counts else None
    counts_reason = _why_not_counted(checks.counts, outcomes) if checks.counts else None
    if key.ngram is not None and dealt is not None:
        forecaster = decision.forecasters.get(key.engine)
        found = rival_counts(key, dealt, forecaster) if forecaster is not None else None
        counts, counts_reason = found, None if found else "the engine returns no token ids"
    return Candidate(
        name=configuration.name,
        engine=key.engine,
        draft=key.draft,
        settings=key.settings,
        cache_type=key.cache_type,
        live=live,
        reason=None if live is not None else _why_not_live(configuration, decision),
        categories=by_category(runs),
        speedup=speedup,
        speedup_interval=between,
        decode_speedup=decode_speedup,
        output=output_check(compared, control, uncontrolled) if compared else None,
        server_peak_rss_bytes=max((one.peak_rss_bytes for one in started), default=None),
        command=started[0].command if started else (),
        predicted=_prediction(decision, score, key, runs, drawn),
        counts=counts if counts and counts.requests else None,
        counts_reason=counts_reason,
        prompts=by_prompt(runs, live=True) if runs else None,
        serving=Serving(
            configuration.live.context,
            configuration.live.target_args,
            configuration.live.draft_args,
            configuration.live.draft_context,
        ),
        starts=len(started) or None,
        reference=by_prompt(other, live=True)
        if (other := decision.dealing.on_reference.get(key))
        else None,
        log=started[0].log if started else None,
        ngram=key.ngram,
    )


def _why_not_live(configuration: Configuration, decision: Decision) -> str:
    name = configuration.name
    known = {one.candidate: one.reason for one in (*decision.excluded, *decision.left_out)}
    if name in known:
        return known[name]
    if configuration.draft is not None and configuration.draft.name in decision.dropped:
        return decision.dropped[configuration.draft.name]
    if configuration.key in {f.key for f in decision.forecasts}:
        return "predicted; not among the finalists"
    return "not run"


def _ratio(value: float | None, reference: float | None) -> float | None:
    """``value / reference`` where both exist."""
    return value / reference if value is not None and reference else None


def _why_not_counted(counts: SelfCheckStep, outcomes: Outcomes) -> str | None:
    recount = outcomes.result(counts)
    if recount is None:
        return why_not(counts, outcomes)
    if recount.requests:
        return None
    return (
        f"the engine returns no token ids, and the tokens of {recount.passed_over} replies cannot"
        " be read from their text"
    )


def _noise(finished: Finished) -> tuple[NoiseFloor, ...]:
    if finished.decision is None:
        return ()
    confidence = finished.recipe.pick.confidence
    times = NormalDist().inv_cdf((1 + confidence) / 2)
    return tuple(
        NoiseFloor(engine, confidence, times * deviation)
        for engine, deviation in finished.decision.acceptance_sd.items()
        if deviation is not None
    )


def _prediction(
    decision: Decision,
    score: ScoreSpec,
    key: CandidateKey,
    live: Sequence[PromptRun],
    drawn: SampledPrediction | None,
) -> Prediction | None:
    """The forecast of a candidate, and how far off its live requests show it to be."""
    forecasts = {f.key: f for f in decision.forecasts}
    forecast = forecasts.get(key)
    if forecast is None:
        return None
    said = figures(forecast.runs, score.weights)
    bare = forecasts.get(CandidateKey(key.engine))
    without = figures(bare.runs, score.weights) if bare is not None else None
    by_id = {run.id: run for run in forecast.runs}
    pairs = [(by_id[run.id], run) for run in live if run.id in by_id]
    guess, seen = (figures([p[i] for p in pairs], score.weights) if pairs else None for i in (0, 1))
    spent = forecast.spent
    return Prediction(
        figures=said,
        verify_s=spent.verify_s,
        draft_s=spent.draft_s,
        mirror_s=spent.mirror_s,
        sample_s=spent.sample_s,
        speedup=_ratio(said.end_to_end_speed, without.end_to_end_speed) if without else None,
        decode_speedup=_ratio(said.decode_speed, without.decode_speed) if without else None,
        on_live=guess,
        off_by=_less_one(_ratio(guess.end_to_end_speed, seen.end_to_end_speed))
        if guess and seen
        else None,
        decode_off_by=_less_one(_ratio(guess.decode_speed, seen.decode_speed))
        if guess and seen
        else None,
        by_depth=tuple(DepthCount(d, *counts) for d, counts in enumerate(forecast.by_depth, 1)),
        categories=by_category(forecast.runs),
        prompts=by_prompt(forecast.runs),
        rejection=_rejection(drawn),
    )


def _chains(finished: Finished) -> tuple[SampledChain, ...]:
    """What is forecast under the other sampling chains; empty where none is asked for."""
    score, decision = finished.recipe.score, finished.decision
    prompts = finished.layouts[0].prompts
    if score is None or decision is None or prompts is None:
        return ()
    ids = [prompt.id for prompt in prompts.prompts]
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
        for engine, forecaster in decision.forecasters.items()
        for found in (under(forecaster, chain, ids) for chain in forecaster.plan.chains)
    )


def _less_one(ratio: float | None) -> float | None:
    return ratio - 1 if ratio is not None else None


def _rejection(sampled: SampledPrediction | None) -> Rejection | None:
    if sampled is None:
        return None
    return Rejection(
        sampled.draft_n, sampled.draft_n_accepted, sampled.cycles, sampled.decode_tokens_per_s
    )


def _pick(finished: Finished, candidates: Sequence[Candidate]) -> Pick:
    """The pick with its certainty, in names."""
    aim, decision = finished.aim, finished.decision
    standing = decision.standings if decision is not None else None
    unpicked = Pick(
        candidate=None,
        sentence=nothing_qualifies(decision.excluded if decision is not None else ()),
        maximize=aim.objective.value,
        confidence=aim.confidence,
        margin=aim.margin,
        value=None,
        ranking=(),
        excluded=decision.excluded if decision is not None else (),
    )
    if decision is None or standing is None or decision.pick is None:
        return unpicked
    names = {c.key: c.name for c in candidates}
    winner = next(c for c in candidates if c.key == decision.pick)
    pick = replace(
        unpicked,
        candidate=winner.name,
        value=_value(winner, aim.objective),
        ranking=tuple(names[key] for key in decision.ranking),
        decided=decision.decided,
        leader=names[standing.leader],
        rival=names[standing.rival] if standing.rival is not None else None,
        rival_low=math.exp(standing.low) if standing.rival is not None else None,
        rival_high=math.exp(standing.high) if standing.rival is not None else None,
        seconds_to_decide=decision.seconds_to_decide,
        within={names[key]: chance for key, chance in standing.within.items()},
        looks=decision.looks,
        start_sd=standing.start_sd if aim.objective.timed else None,
    )
    runs = [run for row in decision.rows for run in row.live]
    disturbed = sum(run.disturbed for run in runs) / len(runs) if runs else 0.0
    return replace(pick, sentence=pick_sentence(pick, winner, candidates, disturbed))


def _value(winner: Candidate, objective: Objective) -> float | None:
    """The maximized figure: of a speed the live one, of a count that of all replayed prompts."""
    found = winner.live
    if not objective.timed and winner.predicted is not None:
        found = winner.predicted.figures
    return objective.of(found) if found is not None else None


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
    warnings += _unforeseen(candidates)
    warnings += _contention(finished)
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
            ratio = _ratio(said, seen)
            if ratio is not None and not LEAST_RATIO < ratio < 1 / LEAST_RATIO:
                found.append(f"{c.name} {ratio - 1:+.0%} {kind}")
    if not found:
        return []
    return [
        f"forecast speedups were far from live ones ({some(found, NAMED)}): what did not run may "
        "be as far from its forecast (`method: live` runs every candidate)"
    ]


def _contention(finished: Finished) -> list[str]:
    """One warning for all timings that other programs disturbed."""
    cores, timings = _disturbed(finished)
    if not cores:
        return []
    return [
        f"{len(cores)} of {timings} timings were disturbed: other programs kept up to "
        f"{max(cores):.1f} cores busy meanwhile, and those speeds are not to be trusted "
        "(`--remeasure` on an idle machine measures again)"
    ]


def _disturbed(finished: Finished) -> tuple[list[float], int]:
    """Cores taken by other programs in each disturbed timing, and the number of all timings."""
    timed: list[Step[Any]] = [*finished.deals]
    timed += [s for forecast in finished.forecasts for s in forecast.steps() if s.timed]
    timed += finished.parallel.steps if finished.parallel is not None else ()
    results = [r for s in timed if (r := finished.outcomes.result(s)) is not None]
    return [r.others_cores for r in results if r.warnings], len(results)


def _steps(finished: Finished) -> tuple[StepRecord, ...]:
    wanted: list[Step[Any]] = [step for layout in finished.layouts for step in layout.making()]
    wanted += [step for forecast in finished.forecasts for step in forecast.steps()]
    wanted += finished.deals
    wanted += finished.parallel.steps if finished.parallel is not None else ()
    wanted += finished.decision.checks if finished.decision is not None else ()
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
