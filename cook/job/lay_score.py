"""From a recipe's `score` to the steps that score its drafts on one engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cook.documents.tree import Keys
from cook.engines.base import BATCH, DraftSettings, Engine, ModelArgs
from cook.engines.ngram_settings import DEFAULTS, doubts
from cook.errors import InputError
from cook.formats.gguf import GgufFile
from cook.formats.quant_types import Flavour
from cook.formats.trace_file import TraceFile
from cook.formats.vocabulary import read_vocabulary
from cook.graph.step import Input, Source
from cook.job.adopt import Adopted, adopt
from cook.job.drafting import has_template, lay_trace, left_to_score
from cook.job.layout import (
    NO_DRAFT,
    DraftForecast,
    DraftPlan,
    ForecastPlan,
    Layout,
    LiveGrid,
    OtherChain,
    Rival,
    draft_args,
)
from cook.job.locate import ModelFile, SourceReader, local_path
from cook.prompts.prompt_set import PromptSet, load_prompts, prompts_file, select
from cook.prompts.shares import in_halves
from cook.recipe.schema import Recipe, RivalSpec, ScoreSpec
from cook.recipe.traps import TARGET, models_at
from cook.scoring.simulate import PROFILES, RULES, Profile
from cook.scoring.slots import require_room
from cook.steps.curve import CurveStep, rows_for, widths_for
from cook.steps.replay import ReplayStep
from cook.steps.trace import Trace, TraceStep
from cook.trace.compatible import require_one_vocabulary


def lay_score(layout: Layout, recipe: Recipe, reader: SourceReader, suffix: str) -> Layout:
    """``layout`` with the steps that score its drafts, and the warnings of these alone; as it is
    for a recipe without `score`.

    InputError as by :func:`require_scorable`, and for a trace of something else.
    """
    score, engine, drafts = recipe.score, layout.engine, layout.drafts
    if score is None:
        return layout
    headers = {place: reader.model(ref).file for place, ref in models_at(recipe).items()}
    prompts = require_scorable(recipe, engine.flavour, headers)
    target = reader.model(score.target.source, "target")
    reader.files.append(prompts_file(score.prompts))
    settings = settings_on(engine.flavour, score)
    rivals = as_rivals(engine.flavour, score.rivals, suffix)
    if taken := {d.name for d in drafts} & {r.name for r in rivals}:
        raise InputError(f"{min(taken)} is a draft and a rival", hint="give the draft another name")
    forecast, recorded = None, None
    if score.method == "replay":
        if score.trace is not None:
            recorded = _recorded(score, local_path(score.trace), target, prompts, reader)
            prompts = recorded.prompts
        prompts = in_halves(prompts)
        deployed = lay_trace(engine, score, target, prompts.prompts)
        forecast = lay_forecast(
            *(engine, score, target.source, prompts, drafts),
            recorded.step if recorded is not None else deployed,
            rivals=rivals,
            suffix=suffix,
        )
        forecast = replace(forecast, chains=lay_chains(deployed, score) if drafts else ())
    grid = LiveGrid(engine, score, target.source, has_template(target.file), prompts.prompts)
    before = [draft.after for draft in drafts if draft.after is not None]
    return replace(
        layout,
        target=target.source,
        prompts=prompts,
        baseline=grid.configuration(None, None, None, NO_DRAFT + suffix),
        grid=grid.all(drafts, settings, rivals),
        forecast=forecast,
        slots=score.slots,
        target_description=target.file.string("general.description"),
        warnings=(
            *(
                f"{rival.name}: {doubt}"
                for rival in dict.fromkeys((*rivals, *before))
                if (doubt := doubts(rival.settings, Flavour(engine.flavour))) is not None
            ),
            *_shared_device(score),
            *(_cut_short(recorded.trace) if recorded is not None else ()),
        ),
    )


def require_scorable(recipe: Recipe, flavour: str, headers: Mapping[Keys, GgufFile]) -> PromptSet:
    """The prompts that `score` asks for.

    InputError for a draft whose vocabulary is not the target's, as far as ``headers`` are at hand,
    for prompts that cannot be read or split in two, and for slots and rivals that an engine of
    ``flavour`` cannot serve.
    """
    score = recipe.score
    assert score is not None, "asked where there is one"
    if TARGET in headers:
        ours = read_vocabulary(headers[TARGET])
        for place, file in headers.items():
            if place != TARGET:
                require_one_vocabulary(ours, headers[TARGET].path, file)
    apart = left_to_score(recipe, load_prompts(score.prompts))
    prompts = select(apart, score.limit, score.categories)
    if TARGET in headers and not has_template(headers[TARGET]):
        _ = [prompt.untemplated for prompt in prompts.prompts]
    if max(score.slots) > 1 and flavour == Flavour.LLAMA_CPP:
        longest = max(s.n_max for s in settings_on(flavour, score))
        require_room(max(score.slots), longest, score.target.args.batch or BATCH)
    as_rivals(flavour, (*score.rivals, *score.draft.after))
    if score.method == "replay" and score.trace is None:
        in_halves(prompts)
    return prompts


def _recorded(
    score: ScoreSpec, path: Path, target: ModelFile, prompts: PromptSet, reader: SourceReader
) -> Adopted:
    """The trace that the recipe names, checked against target, prompts and sampling."""
    reader.files.append(path)
    return adopt(
        path,
        target=(target.file.path, target.source),
        prompts=prompts,
        sampler=score.sampling.to_sampling().applied(),
    )


def lay_chains(deployed: TraceStep, score: ScoreSpec) -> tuple[OtherChain, ...]:
    """The recordings under the sampling chains that are asked for next to the deployed one."""
    return tuple(
        OtherChain(sampling, replace(deployed, sampling=sampling))
        for sampling in score.sampling.chains[1:]
    )


def lay_forecast(
    engine: Engine,
    score: ScoreSpec,
    target: Source,
    prompts: PromptSet,
    drafts: Sequence[DraftPlan],
    trace: Trace,
    *,
    rivals: tuple[Rival, ...] = (),
    suffix: str = "",
) -> ForecastPlan:
    """On ``trace``, for every draft and KV cache type its replay and its times."""
    target_args = score.target.args.to_model_args()
    several = len(score.draft.cache_types) > 1
    placed = [
        PlacedDraft(
            draft,
            engine.as_draft(
                draft_args(score.draft.args.to_model_args(), cache_type),
                target_args,
                score.context,
            ),
            cache_type,
            f"{draft.name} kv={cache_type}" if several else None,
        )
        for draft in drafts
        for cache_type in score.draft.cache_types
    ]
    plan = forecast_plan(
        engine,
        trace,
        placed,
        settings_on(engine.flavour, score),
        target=(target, target_args),
        baseline=score.baseline.args.to_model_args() if score.baseline is not None else None,
        n_predict=score.max_tokens,
        context=score.context,
        rivals=rivals,
    )
    chosen_on = tuple(p.id for p in prompts.prompts if p.half == "pick")
    return replace(
        plan,
        several_cache_types=several,
        floor_prompts=chosen_on,
        no_draft=NO_DRAFT + suffix,
    )


@dataclass(frozen=True)
class PlacedDraft:
    """A draft as it is replayed and timed; its steps are ``labelled`` so, else with its name."""

    draft: DraftPlan
    args: ModelArgs
    cache_type: str | None = None
    labelled: str | None = None

    @property
    def label(self) -> str:
        return self.labelled or self.draft.name


def forecast_plan(
    engine: Engine,
    trace: Trace,
    drafts: Sequence[PlacedDraft],
    settings: tuple[DraftSettings, ...],
    *,
    target: tuple[Source, ModelArgs] | None,
    baseline: ModelArgs | None = None,
    n_predict: int,
    context: int,
    timed: bool = True,
    profile: Profile | None = None,
    rivals: tuple[Rival, ...] = (),
    top: int = 0,
    two_stage: Sequence[Rival] = (),
) -> ForecastPlan:
    """The steps to forecast ``drafts`` under ``settings``.

    ``target`` is timed where it is given, once more where no draft runs with the arguments of a
    ``baseline`` of its own, and the drafts where ``timed``. ``profile`` None: as the engine counts.
    ``rivals`` verify as wide as they draft, and run with the arguments of no draft; before a draft,
    as ``two_stage`` and those of the drafts' plans do, that follows as wide. ``top``: see
    :class:`ReplayStep`.
    """
    profile = profile or PROFILES[Flavour(engine.flavour)]
    ending = [s for s in settings if s.p_min and RULES[profile].uses_p_min]
    rollouts = max((s.n_max for s in ending), default=0)
    floor = min((s.p_min for s in ending), default=0.0)
    wide = [rival.settings.longest for rival in rivals]
    first = [*two_stage, *(one.draft.after for one in drafts if one.draft.after is not None)]
    before = [rival.settings.longest for rival in first]
    followed = widths_for([*(s.n_max for s in settings), *before])
    apart = baseline is not None and target is not None and baseline != target[1]
    verified = [*(s.n_max for s in settings), *before, *(() if apart else (0, *wide))]

    def of_target(name: str, model: Input, args: ModelArgs, lengths: Sequence[int]) -> CurveStep:
        rows, widths = rows_for(engine, args, lengths), widths_for(lengths)
        return CurveStep(engine, name, model, trace, args, True, widths, rows=rows)

    verify = of_target("target", *target, verified) if target is not None else None
    plain = verify
    if apart and target is not None and baseline is not None:
        plain = of_target("without a draft", target[0], baseline, (0, *wide))
    return ForecastPlan(
        engine=engine,
        trace=trace,
        verify=verify,
        plain=plain,
        drafts=tuple(
            DraftForecast(
                one.draft,
                one.cache_type,
                ReplayStep(
                    *(engine, one.label, one.draft.model, trace, one.args),
                    rollout_steps=rollouts,
                    rollout_floor=floor,
                    top=top,
                ),
                CurveStep(
                    *(engine, one.label, one.draft.model, trace, one.args, False), widths=followed
                )
                if timed
                else None,
            )
            for one in drafts
        ),
        settings=settings,
        profile=profile,
        n_predict=n_predict,
        context=context,
        rivals=rivals,
    )


def as_rivals(flavour: str, asked: Sequence[RivalSpec], suffix: str = "") -> tuple[Rival, ...]:
    """The draft-free rivals that are ``asked`` for, with the numbers of ``flavour``; each once.

    Of `all` those that it has; InputError for one, asked for by name, that it has not.
    """
    known = Flavour(flavour)
    settings = (one for spec in asked for one in spec.to_settings(tuple(DEFAULTS[known])))
    return tuple(Rival(f"{one}{suffix}", one.of(known)) for one in dict.fromkeys(settings))


def settings_on(flavour: str, score: ScoreSpec) -> tuple[DraftSettings, ...]:
    """The settings that ``score`` asks for, those that are one on ``flavour`` once.

    Where p_min never ends a draft, the first that was asked for stands for all.
    """
    asked = score.draft.settings(score.method)
    if RULES[PROFILES[Flavour(flavour)]].uses_p_min:
        return asked
    apart = {(one.n_max, one.n_min): one for one in reversed(asked)}
    return tuple(one for one in asked if apart[one.n_max, one.n_min] is one)


def _shared_device(score: ScoreSpec) -> Iterator[str]:
    """A warning where the draft takes memory that the baseline was not given."""
    uses_gpu = bool(score.draft.args.n_gpu_layers or score.draft.args.devices)
    if uses_gpu and (score.baseline is None or score.baseline.args == score.target.args):
        yield (
            "score.baseline: without a draft the device memory that it takes is free; give "
            "score.baseline.args that offload more, or the speedup flatters the draft"
        )


def _cut_short(trace: TraceFile) -> Iterator[str]:
    """A warning where the trace that the recipe names ends in the middle of a reply."""
    if trace.cut_short:
        yield (
            f"{trace.path}: was cut short after {len(trace)} whole replies, and these are scored; "
            "`cook trace` with the same options goes on where it stopped"
        )
