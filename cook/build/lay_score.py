"""From a recipe's `score` to the steps that score its drafts on one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cook.build.adopt import Adopted, adopt
from cook.build.drafting import left_to_score
from cook.build.layout import (
    NO_DRAFT,
    Configuration,
    DraftForecast,
    DraftPlan,
    ForecastPlan,
    LiveGrid,
    draft_args,
)
from cook.build.locate import ModelFile, SourceReader, local_path
from cook.engines.base import DraftSettings, Engine
from cook.engines.spec_bench import require_spec_bench
from cook.errors import InputError
from cook.formats.gguf import GgufFile
from cook.formats.trace_file import TraceFile
from cook.formats.vocabulary import compare, read_vocabulary
from cook.prompts.prompt_set import PromptSet, load_prompts, prompts_file, select
from cook.prompts.shares import in_halves, race_shares
from cook.recipe.schema import Recipe, ScoreSpec
from cook.steps.curve import PASSES, CurveStep, widths_for
from cook.steps.replay import ReplayStep
from cook.steps.trace import Trace, TraceStep

RACE_FROM = 8
"""Drafts from which on they race: hopeless ones leave before the whole trace is replayed."""
FLOOR_WIDTH = 24
"""Tokens a batch of the replay that shows the noise floor: no width that anything else uses."""


@dataclass(frozen=True)
class ScoreLayout:
    """The score's part of a menu."""

    target: ModelFile
    prompts: PromptSet
    baseline: Configuration
    grid: tuple[Configuration, ...]
    forecast: ForecastPlan | None


def lay_score(
    engine: Engine,
    recipe: Recipe,
    reader: SourceReader,
    drafts: tuple[DraftPlan, ...],
    suffix: str,
) -> ScoreLayout | None:
    """How ``drafts`` are scored on ``engine``; None for a recipe without `score`.

    InputError for a draft whose vocabulary is not the target's, and for prompts that replay
    cannot split in two; PrerequisiteError for a live tool that the engine lacks.
    """
    score = recipe.score
    if score is None:
        return None
    if score.live == "spec-bench":
        require_spec_bench(engine)
    target = reader.model(score.target.source, "target")
    require_one_vocabulary(recipe, target.file, reader)
    reader.files.append(prompts_file(score.prompts))
    apart = left_to_score(recipe, load_prompts(score.prompts))
    prompts = select(apart, score.limit, score.categories)
    forecast = None
    live = prompts.prompts
    settings = score.draft.settings(score.method)
    if score.method == "replay":
        adopted = _adopted(score, target, prompts, reader)
        prompts = in_halves(adopted.prompts if adopted else prompts)
        trace = adopted.step if adopted else lay_trace(engine, score, target, prompts)
        forecast = lay_forecast(engine, score, target, prompts, drafts, settings, trace)
        # Finalists are chosen on the other half, so their live figures owe nothing to luck.
        live = tuple(p for p in prompts.prompts if p.half == "report")
    grid = LiveGrid(engine, score, target.source, has_template(target.file), live)
    baseline = grid.configuration(None, None, None, NO_DRAFT + suffix, None)
    return ScoreLayout(target, prompts, baseline, grid.all(drafts, settings, baseline), forecast)


def _adopted(
    score: ScoreSpec, target: ModelFile, prompts: PromptSet, reader: SourceReader
) -> Adopted | None:
    """The trace that the recipe names, checked against target, prompts and sampling."""
    if score.trace is None:
        return None
    path = local_path(score.trace)
    reader.files.append(path)
    return adopt(
        path,
        target=(target.file.path, target.source),
        prompts=prompts,
        sampler=score.sampling.to_sampling().applied(),
    )


def lay_trace(engine: Engine, score: ScoreSpec, target: ModelFile, prompts: PromptSet) -> TraceStep:
    """The recording of what ``target`` says to ``prompts`` on ``engine``."""
    return TraceStep(
        engine=engine,
        target=target.source,
        args=score.target.args.to_model_args(),
        context=score.context,
        prompts=prompts.prompts,
        max_tokens=score.max_tokens,
        sampling=score.sampling.to_sampling(),
        chat=has_template(target.file),
    )


def lay_forecast(
    engine: Engine,
    score: ScoreSpec,
    target: ModelFile,
    prompts: PromptSet,
    drafts: Sequence[DraftPlan],
    settings: tuple[DraftSettings, ...],
    trace: Trace,
) -> ForecastPlan:
    """On ``trace``, for every draft and KV cache type its replay and its times."""
    target_args = score.target.args.to_model_args()
    rollouts = max(s.n_max for s in settings) if any(s.p_min for s in settings) else 0
    widths = widths_for(s.n_max for s in settings)
    several = len(score.draft.cache_types) > 1
    racing = len(drafts) * len(score.draft.cache_types) >= RACE_FROM
    shares = race_shares(prompts) if racing else (None,)
    found: list[DraftForecast] = []
    for draft in drafts:
        for cache_type in score.draft.cache_types:
            given = draft_args(score.draft.args.to_model_args(), cache_type)
            args = given.as_draft_of(target_args)
            name = f"{draft.name} kv={cache_type}" if several else draft.name
            found.append(
                DraftForecast(
                    draft,
                    cache_type,
                    tuple(
                        ReplayStep(engine, name, draft.model, trace, args, rollouts, None, share)
                        for share in shares
                    ),
                    tuple(
                        CurveStep(engine, name, draft.model, trace, args, False, widths, turn)
                        for turn in range(PASSES)
                    ),
                )
            )
    largest = max(found, key=lambda d: d.draft.predicted_tensor_bytes or 0, default=None)
    return ForecastPlan(
        trace=trace,
        verify=tuple(
            CurveStep(engine, "target", target.source, trace, target_args, True, widths, turn)
            for turn in range(PASSES)
        ),
        drafts=tuple(found),
        settings=settings,
        several_cache_types=several,
        floor=(largest, _floor(largest.replays[0])) if largest else None,
    )


def _floor(replay: ReplayStep) -> ReplayStep:
    return replace(replay, width=FLOOR_WIDTH)


def has_template(file: GgufFile) -> bool:
    """Whether prompts are rendered by the target's own chat template."""
    return "tokenizer.chat_template" in file.metadata


def require_one_vocabulary(recipe: Recipe, target: GgufFile, reader: SourceReader) -> None:
    """Refuse a draft that the engine would silently not use, or translate.

    docs/internals/engines.md#serving-without-drafting
    """
    refs = [d.source for d in recipe.drafts]
    if recipe.model is not None:
        refs.append(recipe.model.source)
    ours = read_vocabulary(target)
    for ref in refs:
        file = reader.model(ref).file
        differences = compare(ours, read_vocabulary(file))
        if differences:
            listed = "; ".join(str(d) for d in differences[:5])
            raise InputError(
                f"{file.path}: cannot draft for {target.path}: {listed}",
                hint="a draft needs its target's vocabulary; choose one of the same family",
            )


def shared_device_warning(score: ScoreSpec) -> str | None:
    """A warning where the draft takes memory that the baseline was not given."""
    uses_gpu = bool(score.draft.args.n_gpu_layers or score.draft.args.devices)
    if not uses_gpu or (score.baseline is not None and score.baseline.args != score.target.args):
        return None
    return (
        "score.baseline: the draft takes device memory that the baseline does not use; "
        "give score.baseline.args that offload more, or the speedup flatters the draft"
    )


def trace_warning(score: ScoreSpec) -> str | None:
    """A warning where the trace that the recipe names ends in the middle of a reply."""
    if score.trace is None:
        return None
    trace = TraceFile(local_path(score.trace))
    if not trace.cut_short:
        return None
    return (
        f"{trace.path}: was cut short after {len(trace)} whole replies, and these are scored; "
        "`cook trace` with the same options goes on where it stopped"
    )
