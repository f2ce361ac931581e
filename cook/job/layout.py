"""The layout: what a recipe asks of one engine, as steps. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cook.engines.base import DraftSettings, Engine
from cook.engines.speculation import NgramSettings
from cook.formats.heads import Head
from cook.formats.quant_types import Flavour
from cook.formats.reduction import Reduction
from cook.graph.step import Input, Source, Step
from cook.prompts.prompt_set import Prompt, PromptSet
from cook.recipe.active import ActiveBytes
from cook.record.record import CandidateKey, Excluded
from cook.scoring.simulate import Profile
from cook.steps.checks import CompareStep, ControlStep, RecountStep
from cook.steps.curve import CurveStep
from cook.steps.deal import Dealt
from cook.steps.draft_quality import DivergenceStep, MemoryStep, PerplexityStep
from cook.steps.head_replay import HeadReplayStep
from cook.steps.imatrix import HeadImatrixStep, ImatrixStep
from cook.steps.live import LiveStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep
from cook.steps.trace import Trace, TraceStep

NO_DRAFT = "no draft"
FLOOR_WIDTH = 1
"""Tokens a batch of the replay that shows the noise floor: as a server drafts."""


@dataclass(frozen=True)
class Rival:
    """Draft-free speculation, in the place of a draft or before one. ``name`` is what the recipe
    calls it."""

    name: str
    settings: NgramSettings

    def key(self, engine: Engine) -> CandidateKey:
        """What tells it from other candidates, in the place of a draft."""
        return CandidateKey(engine.name, self.name, ngram=self.settings)


@dataclass(frozen=True)
class DraftPlan:
    """One draft file: made by ``quantize``, or the user's own when that is None.

    ``reduction``: what a candidate of fewer experts or layers does without; its ``model`` is then
    a step of its own, unless the model uses no more experts anyway.
    """

    name: str
    model: Input
    quantize: QuantizeStep | None = None
    quality: DivergenceStep | PerplexityStep | None = None
    memory: MemoryStep | None = None
    predicted_tensor_bytes: int | None = None
    elements: int | None = None
    type_counts: dict[str, int] = field(default_factory=dict)
    active: ActiveBytes | None = None
    """What one token reads of it; None where no header tells."""
    reduction: Reduction | None = None
    after: Rival | None = None
    """What drafts before it does; None where it drafts alone."""
    context: int | None = None
    """Tokens of its own context in a server (ik_llama.cpp); None: the target's."""
    output: str | None = None
    """Type that the output head of a ready file is to have; None: as it came."""
    head: Head | None = None
    """Of a draft that drafts from the target's hidden states; ``model`` is the target where its own
    file holds it."""

    @property
    def making_step(self) -> Step[Any] | None:
        """The step whose artifact is the file."""
        return self.model if isinstance(self.model, Step) else None

    def making(self) -> Iterator[Step[Any]]:
        """The steps that make the file and measure it alone."""
        for step in dict.fromkeys((self.quantize, self.making_step, self.quality, self.memory)):
            if step is not None:
                yield step

    def key(self, engine: Engine, settings: DraftSettings, cache_type: str | None) -> CandidateKey:
        """What tells it, under ``settings``, from other candidates."""
        first = self.after.settings if self.after is not None else None
        return CandidateKey(engine.name, self.name, settings, cache_type, first)


@dataclass(frozen=True)
class Configuration:
    """A candidate that may run live: its server, with all prompts. ``draft`` None is no draft, or
    n-grams in its place."""

    key: CandidateKey
    draft: DraftPlan | None
    live: LiveStep

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.live.name


@dataclass(frozen=True)
class Checks:
    """What is checked of a live run, apart from its speed; None where it cannot be.

    ``counts``: that our accounting is the engine's; ``compare``: its replies next to those without
    a draft; ``control``: what the width of its batches alone changes.
    """

    counts: RecountStep | None = None
    compare: CompareStep | None = None
    control: ControlStep | None = None


@dataclass(frozen=True)
class Layout:
    """Everything a recipe asks of one engine, as steps."""

    engine: Engine
    imatrix: ImatrixStep | HeadImatrixStep | None
    reference: PerplexityStep | None
    drafts: tuple[DraftPlan, ...]
    target: Source | None = None
    prompts: PromptSet | None = None
    baseline: Configuration | None = None
    grid: tuple[Configuration, ...] = ()
    warnings: tuple[str, ...] = ()
    forecast: ForecastPlan | None = None
    left_out: tuple[Excluded, ...] = ()
    target_description: str | None = None
    """What the target's file says of itself."""

    def making(self) -> Iterator[Step[Any]]:
        """Steps before the live score: imatrix, quantize, evaluate, memory."""
        if self.imatrix is not None:
            yield self.imatrix
        if self.reference is not None:
            yield self.reference
        for draft in self.drafts:
            yield from draft.making()

    def all_steps(self) -> Iterator[Step[Any]]:
        """Every step that is known before the first block is dealt."""
        yield from self.making()
        if self.forecast is not None:
            yield from self.forecast.steps()

    def without(self, names: Collection[str]) -> Layout:
        """The layout with the drafts ``names`` made and measured, but neither forecast nor run."""
        grid = tuple(c for c in self.grid if c.draft is None or c.draft.name not in names)
        plan = self.forecast.without(names) if self.forecast is not None else None
        return replace(self, grid=grid, forecast=plan)

    def checks(self, configuration: Configuration, dealt: Dealt, baseline: Dealt | None) -> Checks:
        """Of a finalist of this engine, by what it and no draft, the ``baseline``, were dealt.
        Counts and control need a replay, and the drafts of models and the control no n-grams."""
        key, draft, live = configuration.key, configuration.draft, configuration.live
        compare = None
        if baseline is not None and key.draft is not None:
            compare = CompareStep(
                engine=self.engine,
                name=configuration.name,
                target=live.target,
                target_args=live.target_args,
                context=live.context,
                baseline=baseline,
                live=dealt,
            )
        plan, target, settings = self.forecast, self.target, key.settings
        if plan is None or target is None or draft is None or settings is None:
            return Checks(compare=compare)
        follows = self.engine.flavour == Flavour.LLAMA_CPP  # the worker drives the heads of that
        heads = {head.draft.name for head in plan.heads if follows}
        if (draft.head and draft.name not in heads) or (key.ngram and not draft.head):
            return Checks(compare=compare)
        counts = RecountStep(
            engine=self.engine,
            name=configuration.name,
            draft=draft.model,
            args=self.engine.as_draft(live.draft_args, live.target_args, live.context),
            settings=settings,
            profile=plan.profile,
            trace=plan.trace,
            live=dealt,
        )
        if key.ngram is not None:
            return Checks(counts, compare)
        width = settings.n_max + 1
        control = ControlStep(self.engine, target, live.target_args, plan.trace, width)
        return Checks(counts, compare, control)


def checks_of(
    layouts: Sequence[Layout],
    finalists: Sequence[Configuration],
    dealt_to: Callable[[CandidateKey], Dealt | None],
) -> Iterator[Step[Any]]:
    """How far our counts are the engine's, of all ``finalists``, which were ``dealt_to``, and
    whether the first changes outputs: of that alone, since on long prompts it takes as long as a
    live run."""
    for number, configuration in enumerate(finalists):
        engine = configuration.key.engine
        layout = next(m for m in layouts if m.engine.name == engine)
        dealt = dealt_to(configuration.key)
        assert dealt is not None, "finalists ran"
        checks = layout.checks(configuration, dealt, dealt_to(CandidateKey(engine)))
        if checks.counts is not None:
            yield checks.counts
        if checks.compare is not None and (number == 0 or layout.forecast is None):
            yield checks.compare
            if checks.control is not None:
                yield checks.control


def dealt_into(prompts: Sequence[Prompt], count: int) -> tuple[tuple[Prompt, ...], ...]:
    """``count`` shares of the prompts, alike in size and in their mix of categories; no empty
    ones."""
    categories = list(dict.fromkeys(p.category for p in prompts))
    by_category = sorted(prompts, key=lambda p: categories.index(p.category))
    turns = {prompt.id: turn for turn, prompt in enumerate(by_category)}
    dealt = ([p for p in prompts if turns[p.id] % count == block] for block in range(count))
    return tuple(tuple(share) for share in dealt if share)


def config_name(draft: str, settings: DraftSettings, cache_type: str | None) -> str:
    """``IQ1_KT n_max=4``, with what else is not the default."""
    parts = [draft, f"n_max={settings.n_max}"]
    if settings.n_min:
        parts.append(f"n_min={settings.n_min}")
    if settings.p_min:
        parts.append(f"p_min={settings.p_min:g}")
    if cache_type:
        parts.append(f"kv={cache_type}")
    return " ".join(parts)


@dataclass(frozen=True)
class DraftForecast:
    """What is needed to forecast one draft with one KV cache type.

    ``curve``: its times; None where they are typed.
    """

    draft: DraftPlan
    cache_type: str | None
    replay: ReplayStep
    curve: CurveStep | None


@dataclass(frozen=True)
class HeadForecast:
    """The same of a head, with what it drafts under and is counted by."""

    draft: DraftPlan
    cache_type: str | None
    replay: HeadReplayStep
    curve: CurveStep
    settings: tuple[DraftSettings, ...]
    profile: Profile


@dataclass(frozen=True)
class ForecastPlan:
    """The steps below all forecasts of one recipe on one engine.

    ``verify``: the target's curve, None where its times are typed; ``plain`` that of no draft,
    which is the same where it runs with the same arguments. ``n_predict`` and ``context`` bound the
    drafts as the server's do. ``rivals`` are simulated on the trace's tokens, and priced as no
    draft is. ``floor_prompts``: those of :attr:`floor`, if any. ``no_draft`` is its name for
    people. ``chains``: traces under other sampling chains than the deployed one, where the target
    writes its own text, and every draft is replayed on that. ``heads`` are replayed on the trace,
    and priced with ``with_rows``, the target's curve where it computes what they read.
    """

    engine: Engine
    trace: Trace
    verify: CurveStep | None
    plain: CurveStep | None
    drafts: tuple[DraftForecast, ...]
    settings: tuple[DraftSettings, ...]
    profile: Profile
    n_predict: int
    context: int
    rivals: tuple[Rival, ...] = ()
    floor_prompts: tuple[str, ...] = ()
    no_draft: str = NO_DRAFT
    chains: tuple[TraceStep, ...] = ()
    heads: tuple[HeadForecast, ...] = ()
    with_rows: CurveStep | None = None

    @property
    def floor(self) -> DraftForecast | None:
        """The largest draft, replayed token by token: how much acceptance differs for the shape of
        the batches alone."""
        if not self.floor_prompts or not self.drafts:
            return None
        largest = max(self.drafts, key=lambda d: d.draft.predicted_tensor_bytes or 0)
        replay = replace(largest.replay, width=FLOOR_WIDTH, prompts=self.floor_prompts)
        return replace(largest, replay=replay)

    @property
    def every(self) -> tuple[DraftForecast | HeadForecast, ...]:
        """Drafts, models and heads."""
        return (*self.drafts, *self.heads)

    def target_of(self, draft: DraftForecast | HeadForecast) -> CurveStep | None:
        """The target's curve in the server of ``draft``."""
        return self.with_rows if isinstance(draft, HeadForecast) else self.verify

    def settings_of(self, draft: DraftForecast | HeadForecast) -> tuple[DraftSettings, ...]:
        """Under which ``draft`` is forecast."""
        return draft.settings if isinstance(draft, HeadForecast) else self.settings

    def profile_of(self, draft: DraftForecast | HeadForecast | None) -> Profile:
        """By which it is counted."""
        return draft.profile if isinstance(draft, HeadForecast) else self.profile

    def curves(self) -> Iterator[CurveStep]:
        """Everything that is timed, one after the other."""
        drafts = (draft.curve for draft in self.every)
        found = (self.verify, self.plain, self.with_rows, *drafts)
        yield from (curve for curve in dict.fromkeys(found) if curve is not None)

    def without(self, names: Collection[str]) -> ForecastPlan | None:
        """The plan without the drafts ``names``; None where that leaves nothing to forecast."""
        drafts = tuple(d for d in self.drafts if d.draft.name not in names)
        heads = tuple(d for d in self.heads if d.draft.name not in names)
        return replace(self, drafts=drafts, heads=heads) if drafts or heads else None

    def on(self, trace: Trace) -> ForecastPlan:
        """The drafts on what another ``trace`` has, priced with the same times."""
        drafts = tuple(
            replace(d, replay=replace(d.replay, trace=trace, prompts=None)) for d in self.drafts
        )
        rest: dict[str, Any] = dict.fromkeys(("floor_prompts", "rivals", "chains", "heads"), ())
        return replace(self, trace=trace, drafts=drafts, with_rows=None, **rest)

    def steps(self) -> Iterator[Step[Any]]:
        """Everything below the forecasts: traces, replays, the noise floor, and the timings."""
        yield self.trace
        yield from self.chains
        yield from (draft.replay for draft in self.drafts)
        if self.floor is not None:
            yield self.floor.replay
        yield from (head.replay for head in self.heads)
        for chain in self.chains:
            yield from (draft.replay for draft in self.on(chain).drafts)
        yield from self.curves()

    def key(self, draft: DraftForecast | HeadForecast, settings: DraftSettings) -> CandidateKey:
        return draft.draft.key(self.engine, settings, draft.cache_type)

    def is_of(self, draft: DraftForecast | HeadForecast, key: CandidateKey) -> bool:
        """Whether ``key`` is ``draft`` under some setting."""
        return (draft.draft.name, draft.cache_type) == (key.draft, key.cache_type)

    def name(self, draft: DraftForecast | HeadForecast, settings: DraftSettings) -> str:
        """The candidate's name for people, as in the live score."""
        several = len({d.cache_type for d in self.every if d.cache_type}) > 1
        return config_name(draft.draft.name, settings, draft.cache_type if several else None)
