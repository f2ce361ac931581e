"""From a recipe's `score` to the steps that score its drafts on one engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from cook.documents.tree import Keys
from cook.engines.base import BATCH, DraftSettings, Engine, ModelArgs, cache_halves
from cook.engines.speculation import DEFAULTS, doubts
from cook.engines.worker.compile import knows_heads, locate
from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import GgufFile
from cook.formats.heads import HeadKind, head_of
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.formats.vocabulary import read_vocabulary
from cook.graph.step import Source
from cook.job.drafting import has_template, lay_trace, left_to_score
from cook.job.layout import (
    NO_DRAFT,
    Configuration,
    DraftForecast,
    DraftPlan,
    ForecastPlan,
    HeadForecast,
    Layout,
    Rival,
    config_name,
)
from cook.job.locate import ModelFile, SourceReader, local_path
from cook.prompts.prompt_set import (
    PromptSet,
    balance_halves,
    load_prompts,
    prompts_file,
    select,
    subset,
)
from cook.recipe.schema import Recipe, RivalSpec, ScoreSpec
from cook.recipe.traps import TARGET, models_at
from cook.record.record import CandidateKey
from cook.scoring.simulate import HEAD_PROFILES, PROFILES, RULES, Profile
from cook.scoring.slots import require_room
from cook.steps.curve import CurveStep, rows_for, widths_for
from cook.steps.head_replay import MOST_BYTES, HeadReplayStep, RowsStep
from cook.steps.live import LiveStep
from cook.steps.replay import ReplayStep
from cook.steps.trace import Trace, given_trace
from cook.trace.compatible import require_one_vocabulary, require_target
from cook.trace.session import prompts_digest, sha256


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
    asked = score.draft.settings(score.method)
    live_only = {
        d.name: why
        for d in drafts
        if (why := why_live_only(engine, d, target.file, asked)) is not None
    }
    replayed = [d for d in drafts if d.name not in live_only]
    reader.files.append(prompts_file(score.prompts))
    rivals = as_rivals(engine.flavour, score.rivals, suffix)
    if taken := {d.name for d in drafts} & {r.name for r in rivals}:
        raise InputError(f"{min(taken)} is a draft and a rival", hint="give the draft another name")
    warnings = [*_warnings(rivals, drafts, engine, score)]
    if score.method == "replay":
        warnings += [f"{name}: live only: {why}" for name, why in live_only.items()]
    forecast = None
    if score.method == "replay" and (replayed or rivals or not drafts):
        given = None
        if score.trace is not None:
            path = local_path(score.trace)
            reader.files.append(path)
            given, recorded = given_trace(path), TraceFile(path)
            prompts = adopt(recorded, target, prompts, score.sampling.to_sampling().applied())
            if recorded.cut_short:
                warnings.append(
                    f"{path}: was cut short after {len(recorded)} whole replies, and these are "
                    "scored; `cook trace` with the same options goes on where it stopped"
                )
        prompts = balance_halves(prompts)
        deployed = lay_trace(engine, score, target, prompts.prompts)
        forecast = lay_forecast(
            *(engine, score, target.source, prompts, replayed, given or deployed),
            rivals=rivals,
            suffix=suffix,
        )
        if forecast.drafts:
            others = score.sampling.chains[1:]
            chains = tuple(replace(deployed, sampling=chain) for chain in others)
            forecast = replace(forecast, chains=chains)
    forecast_of = {one.draft.name for one in forecast.every} if forecast is not None else set()
    baseline, *grid = lay_candidates(
        *(engine, score, target.source, prompts, drafts),
        forecast_of=forecast_of,
        rivals=rivals,
        suffix=suffix,
        chat=has_template(target.file),
    )
    return replace(
        layout,
        target=target.source,
        prompts=prompts,
        baseline=baseline,
        grid=tuple(grid),
        forecast=forecast,
        target_description=target.file.string("general.description"),
        warnings=tuple(warnings),
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
            named = "tokenizer.ggml.tokens" in file.metadata or head_of(file) is None
            if place != TARGET and named:
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
        balance_halves(prompts)
    return prompts


def adopt(
    trace: TraceFile, target: ModelFile | None, prompts: PromptSet, sampler: Sampling
) -> PromptSet:
    """Those of ``prompts`` that were recorded in ``trace``, to be scored under ``sampler``.

    InputError, with the reason, where the trace is of another target, sampling chain or text.
    ``target`` None is no error: a trace needs no target.
    """
    if target is not None:
        require_target(trace, target.file.path, target.source)
    path, recorded = trace.path, trace.header.sampler
    if _chain(sampler) != _chain(recorded):
        raise InputError(
            f"{path}: recorded under another sampling chain ({recorded}, not {sampler})",
            hint="score under the trace's chain, or record another: cook trace",
        )
    heads = {head.id: head for head in trace.heads}
    chosen = tuple(p for p in prompts.prompts if p.id in heads)
    if not chosen:
        raise InputError(
            f"{path}: has none of the prompts of {prompts.name}",
            hint="name the prompt set that it was recorded over: --prompts SET",
        )
    if trace.header.prompts_sha256 not in (prompts_digest(chosen), prompts_digest(prompts.prompts)):
        # Only a prompt that no template rendered can be recognised alone.
        changed = (p for p in chosen if heads[p.id].rendered_sha256 != sha256(p.whole))
        if (other := next(changed, None)) is not None:
            raise InputError(
                f"{path}: prompt {other.id} of {prompts.name} may be another than the recorded one "
                "of this id",
                hint="use the prompt set and --limit that it was recorded with",
            )
    return subset(prompts, chosen)


def _chain(sampler: Sampling) -> Sampling:
    """What must agree: greedy is greedy, and whose random numbers were drawn is no matter."""
    if not sampler.temperature:
        return Sampling(repeat_penalty=sampler.repeat_penalty)
    return replace(sampler, draws="worker")


def lay_candidates(
    engine: Engine,
    score: ScoreSpec,
    target: Source,
    prompts: PromptSet,
    drafts: Sequence[DraftPlan],
    *,
    forecast_of: Collection[str] = (),
    rivals: Sequence[Rival] = (),
    suffix: str = "",
    chat: bool,
) -> list[Configuration]:
    """The servers of no draft, of every draft with every setting, and of every rival, each with all
    prompts; all drafts at one setting before the next setting, so that a budget that ends early has
    still seen every draft. Heads that are not among those in ``forecast_of`` (names) are tried at
    few lengths. ``chat``: prompts are rendered by the target's own template."""
    alone = score.baseline.args if score.baseline is not None else score.target.args

    def candidate(name: str, key: CandidateKey, draft: DraftPlan | None = None) -> Configuration:
        # A rival needs no memory for a draft: its target runs as no draft's does.
        args = score.target.args if draft is not None else alone
        live = LiveStep(
            engine=engine,
            name=name,
            target=target,
            target_args=args.to_model_args(),
            context=score.context,
            draft=draft.model if draft is not None else None,
            draft_args=_draft_args(score, key.cache_type),
            settings=key.settings,
            prompts=prompts.prompts,
            max_tokens=score.max_tokens,
            sampling=score.sampling.to_sampling(),
            chat=chat,
            ngram=key.ngram,
            draft_context=draft.context if draft is not None else None,
            head=draft.head.kind if draft is not None and draft.head is not None else None,
        )
        return Configuration(key, draft, live)

    cache_types = score.draft.cache_types
    live_heads = [d for d in drafts if d.head is not None and d.name not in forecast_of]
    heads = [d for d in drafts if d.head is not None and d not in live_heads]
    models = [draft for draft in drafts if draft.head is None]
    of_models, of_heads = (settings_on(engine.flavour, score, head=head) for head in (False, True))
    kinds_of_heads = _cache_types_of_heads(engine, score)
    shares: list[tuple[Sequence[DraftPlan], Sequence[DraftSettings], Sequence[str | None]]]
    shares = [(models, of_models, cache_types), (heads, of_heads, kinds_of_heads)]
    if shares[0][1:] == shares[1][1:]:
        shares = [([d for d in drafts if d not in live_heads], of_models, cache_types)]
    shares.append((live_heads, score.draft.settings("head"), kinds_of_heads))
    return [
        candidate(NO_DRAFT + suffix, CandidateKey(engine.name)),
        *(
            candidate(
                config_name(draft.name, setting, cache_type if len(kinds) > 1 else None),
                draft.key(engine, setting, cache_type),
                draft,
            )
            for share, asked, kinds in shares
            for cache_type in kinds
            for setting in asked
            for draft in share
        ),
        *(candidate(rival.name, rival.key(engine)) for rival in rivals),
    ]


def _draft_args(score: ScoreSpec, cache_type: str | None) -> ModelArgs:
    """The draft's arguments with the KV cache in ``cache_type`` (``q8_0``; ``q8_0/q5_1``: keys,
    values), unless they name types."""
    args = score.draft.args.to_model_args()
    if cache_type is None:
        return args
    keys, values = cache_halves(cache_type)
    return replace(
        args,
        cache_type_k=args.cache_type_k or keys,
        cache_type_v=args.cache_type_v or values,
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
    models = [draft for draft in drafts if draft.head is None]
    plan = forecast_plan(
        engine,
        trace,
        models,
        settings_on(engine.flavour, score),
        draft_args={
            kind: engine.as_draft(_draft_args(score, kind), target_args, score.context)
            for kind in score.draft.cache_types
        },
        target=(target, target_args),
        baseline=score.baseline.args.to_model_args() if score.baseline is not None else None,
        n_predict=score.max_tokens,
        context=score.context,
        rivals=rivals,
        floor_prompts=tuple(p.id for p in prompts.prompts if p.half == "pick"),
        no_draft=NO_DRAFT + suffix,
    )
    heads = [draft for draft in drafts if draft.head is not None]
    if not heads:
        return plan
    rows = RowsStep(engine, target, target_args, trace)
    streams = (rows.predicted_bytes() or 0) > MOST_BYTES
    settings = settings_on(engine.flavour, score, head=True)
    lengths = [one.n_max for one in settings]
    first = [draft.after.settings.longest for draft in heads if draft.after is not None]
    floor = min((one.p_min for one in settings if one.p_min), default=0.0)
    kinds, profile = _cache_types_of_heads(engine, score), HEAD_PROFILES[Flavour(engine.flavour)]
    verified = [*lengths, *first]
    widths = widths_for(verified)

    def of_head(draft: DraftPlan, kind: str | None) -> HeadForecast:
        args = engine.as_head(_draft_args(score, kind), target_args, score.context)
        label = f"{draft.name} kv={kind}" if len(kinds) > 1 else draft.name
        model = (engine, label, draft.model, trace)
        replay = HeadReplayStep(*model, rows, args, max(lengths), floor, streams)
        curve = CurveStep(*model, args, False, widths, head=True, target=target)
        return HeadForecast(draft, kind, replay, curve, settings, profile)

    found = tuple(of_head(draft, kind) for draft in heads for kind in kinds)
    verify = plan.verify
    assert verify is not None, "its target is timed"
    wider = replace(
        verify,
        widths=tuple(sorted({*verify.widths, *widths})),
        rows=tuple(sorted({*verify.rows, *rows_for(engine, verified)})),
    )
    with_rows = replace(wider, name="target with a head", widths=widths, rows=(), plain=wider)
    plain = wider if plan.plain == verify else plan.plain
    return replace(plan, heads=found, verify=wider, plain=plain, with_rows=with_rows)


def _cache_types_of_heads(engine: Engine, score: ScoreSpec) -> Sequence[str | None]:
    if engine.flavour != Flavour.LLAMA_CPP and "cache_types" not in score.draft.model_fields_set:
        return (None,)  # the target's
    return score.draft.cache_types


_ROWS_OF_HEADS = {
    Flavour.LLAMA_CPP: b"_Z26llama_set_embeddings_nextnP13llama_contextbb",
    Flavour.IK_LLAMA_CPP: b"_Z39llama_set_draft_input_hidden_state_copyP13llama_contextPKfm",
}
"""What an engine's library calls the function that gives a head's input, or takes it, argument
types included; its header is not installed."""
_REPLAYED_ON_IK = ("glm4moe", "qwen35", "qwen35moe")
"""Architectures whose replayed heads were held against servers. (glm-dsa was not; openPangu's is of
one sequence, those of deepseek4 and step35 have windows.)"""


@cache
def _gives_rows(engine: Engine) -> bool:
    libraries = (path for path in engine.files if path.name.startswith("libllama"))
    wanted = _ROWS_OF_HEADS[Flavour(engine.flavour)]
    return any(wanted in path.read_bytes() for path in libraries)


def why_live_only(
    engine: Engine, draft: DraftPlan, target: GgufFile, settings: Sequence[DraftSettings]
) -> str | None:
    """Why the head of ``target`` that ``draft`` is cannot be replayed under ``settings``; None for
    one that can, and for models."""
    head, is_ik = draft.head, engine.flavour == Flavour.IK_LLAMA_CPP
    if head is None:
        return None
    if head.kind is not HeadKind.MTP or len(head.blocks) > 1:
        layers = f" of {len(head.blocks)} layers" if head.blocks else ""
        return f"{head.what}{layers} is not replayed"
    if is_ik and draft.after is not None:
        return f"a head behind n-grams is not replayed on {engine.flavour}"
    if is_ik and (head.alone or target.architecture not in _REPLAYED_ON_IK):
        return f"heads of {target.architecture} are not replayed on {engine.flavour}"
    if is_ik and any(one.n_min > 1 and one.p_min for one in settings):
        return "where n_min discards a draft, ik's head misses what is decoded next"
    try:
        known = knows_heads(locate(engine))
    except PrerequisiteError as error:
        return error.message
    if not (known and _gives_rows(engine)):
        return f"the library of {engine.name} has no functions for heads that cook knows"
    return None


def forecast_plan(
    engine: Engine,
    trace: Trace,
    drafts: Sequence[DraftPlan],
    settings: tuple[DraftSettings, ...],
    *,
    draft_args: Mapping[str | None, ModelArgs],
    target: tuple[Source, ModelArgs] | None,
    baseline: ModelArgs | None = None,
    n_predict: int,
    context: int,
    timed: bool = True,
    profile: Profile | None = None,
    rivals: tuple[Rival, ...] = (),
    top: int = 0,
    two_stage: Sequence[Rival] = (),
    floor_prompts: tuple[str, ...] = (),
    no_draft: str = NO_DRAFT,
) -> ForecastPlan:
    """The steps to forecast ``drafts`` under ``settings``, with the ``draft_args`` of each KV cache
    type.

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
    first = [*two_stage, *(draft.after for draft in drafts if draft.after is not None)]
    drafted = [*(s.n_max for s in settings), *(rival.settings.longest for rival in first)]
    apart = baseline is not None and target is not None and baseline != target[1]

    def of_target(name: str, model: Source, args: ModelArgs, lengths: Sequence[int]) -> CurveStep:
        rows, widths = rows_for(engine, lengths), widths_for(lengths)
        return CurveStep(engine, name, model, trace, args, True, widths, rows=rows)

    def of_draft(draft: DraftPlan, cache_type: str | None) -> DraftForecast:
        args = draft_args[cache_type]
        label = f"{draft.name} kv={cache_type}" if len(draft_args) > 1 else draft.name
        model = (engine, label, draft.model, trace, args)
        replay = ReplayStep(*model, rollout_steps=rollouts, rollout_floor=floor, top=top)
        curve = None
        if timed:
            verified_by = target[0] if target is not None else None
            curve = CurveStep(*model, False, widths_for(drafted), target=verified_by)
        return DraftForecast(draft, cache_type, replay, curve)

    verify = plain = None
    if target is not None:
        plain = verify = of_target("target", *target, drafted if apart else [*drafted, 0, *wide])
        if apart and baseline is not None:
            plain = of_target("without a draft", target[0], baseline, [0, *wide])
    return ForecastPlan(
        engine=engine,
        trace=trace,
        verify=verify,
        plain=plain,
        drafts=tuple(of_draft(draft, kind) for draft in drafts for kind in draft_args),
        settings=settings,
        profile=profile,
        n_predict=n_predict,
        context=context,
        rivals=rivals,
        floor_prompts=floor_prompts,
        no_draft=no_draft,
    )


def as_rivals(flavour: str, asked: Sequence[RivalSpec], suffix: str = "") -> tuple[Rival, ...]:
    """The draft-free rivals that are ``asked`` for, with the numbers of ``flavour``; each once.

    Of `all` those that it has; InputError for one, asked for by name, that it has not.
    """
    known = Flavour(flavour)
    settings = (one for spec in asked for one in spec.to_settings(tuple(DEFAULTS[known])))
    return tuple(Rival(f"{one}{suffix}", one.of(known)) for one in dict.fromkeys(settings))


def settings_on(flavour: str, score: ScoreSpec, *, head: bool = False) -> tuple[DraftSettings, ...]:
    """The settings that ``score`` asks for, those that are one on ``flavour`` once: of models, or
    of heads.

    Where p_min never ends a draft, the first that was asked for stands for all.
    """
    asked = score.draft.settings(score.method)
    if RULES[(HEAD_PROFILES if head else PROFILES)[Flavour(flavour)]].uses_p_min:
        return asked
    apart = {(one.n_max, one.n_min): one for one in reversed(asked)}
    return tuple(one for one in asked if apart[one.n_max, one.n_min] is one)


def _warnings(
    rivals: Sequence[Rival], drafts: Sequence[DraftPlan], engine: Engine, score: ScoreSpec
) -> Iterator[str]:
    """A warning for each n-gram method whose numbers this engine may misuse, and one where the
    draft takes memory that the baseline was not given."""
    before = [draft.after for draft in drafts if draft.after is not None]
    for rival in dict.fromkeys((*rivals, *before)):
        if (doubt := doubts(rival.settings, Flavour(engine.flavour))) is not None:
            yield f"{rival.name}: {doubt}"
    uses_gpu = bool(score.draft.args.n_gpu_layers or score.draft.args.devices)
    if uses_gpu and (score.baseline is None or score.baseline.args == score.target.args):
        yield (
            "score.baseline: without a draft the device memory that it takes is free; give "
            "score.baseline.args that offload more, or the speedup flatters the draft"
        )
