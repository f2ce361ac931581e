"""The layout: from a checked recipe to the steps that it asks for. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cook.engines.base import DraftSettings, Engine, ModelArgs, cache_halves
from cook.engines.ngram_settings import NgramSettings
from cook.formats.reduction import Reduction
from cook.formats.sampling import Sampling
from cook.graph.step import Input, Source, Step
from cook.prompts.prompt_set import Prompt, PromptSet
from cook.recipe.active import ActiveBytes
from cook.recipe.schema import ModelArgsSpec, ScoreSpec
from cook.record.record import CandidateKey, Excluded
from cook.scoring.simulate import Profile
from cook.steps.checks import CompareStep, ControlStep, SelfCheckStep
from cook.steps.curve import CurveStep
from cook.steps.deal import Dealt
from cook.steps.imatrix import ImatrixStep
from cook.steps.live import LiveStep
from cook.steps.memory import MemoryStep
from cook.steps.perplexity import DivergenceStep, PerplexityStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep
from cook.steps.trace import Trace

NO_DRAFT = "no draft"
FLOOR_WIDTH = 24
"""Tokens a batch of the replay that shows the noise floor: no width that anything else uses."""


@dataclass(frozen=True)
class Rival:
    """Draft-free speculation, in the place of a draft or before one. ``name`` is what the recipe
    calls it."""

    name: str
    settings: NgramSettings


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

    @property
    def making_step(self) -> Step[Any] | None:
        """The step whose artifact is the file."""
        return self.model if isinstance(self.model, Step) else None

    def making(self) -> Iterator[Step[Any]]:
        """The steps that make the file and measure it alone."""
        for step in dict.fromkeys((self.quantize, self.making_step, self.quality, self.memory)):
            if step is not None:
                yield step


@dataclass(frozen=True)
class Configuration:
    """A candidate that may run live. ``draft`` None is no draft, or ``rival`` in its place.

    ``live``: its server, with all prompts.
    """

    name: str
    draft: DraftPlan | None
    settings: DraftSettings | None
    cache_type: str | None
    live: LiveStep
    rival: Rival | None = None

    @property
    def key(self) -> CandidateKey:
        if self.rival is not None:
            return rival_key(self.live.engine, self.rival)
        if self.draft is None:
            return CandidateKey(self.live.engine.name)
        assert self.settings is not None, "of a draft"
        return draft_key(self.live.engine, self.draft, self.settings, self.cache_type)


def rival_key(engine: Engine, rival: Rival) -> CandidateKey:
    """What tells ``rival`` from other candidates."""
    return CandidateKey(engine.name, rival.name, ngram=rival.settings)


def draft_key(
    engine: Engine, draft: DraftPlan, settings: DraftSettings, cache_type: str | None
) -> CandidateKey:
    """What tells ``draft`` from other candidates."""
    first = draft.after.settings if draft.after is not None else None
    return CandidateKey(engine.name, draft.name, settings, cache_type, first)


@dataclass(frozen=True)
class LiveChecks:
    """What is checked of a finalist's live run, apart from its speed.

    ``counts``: that our accounting is the engine's; ``control``: what the width of its batches
    alone changes.
    """

    counts: SelfCheckStep
    control: ControlStep

    def steps(self) -> list[Step[Any]]:
        return [self.counts, self.control]


@dataclass(frozen=True)
class Layout:
    """Everything a recipe asks of one engine, as steps."""

    engine: Engine
    imatrix: ImatrixStep | None
    reference: PerplexityStep | None
    drafts: tuple[DraftPlan, ...]
    target: Source | None = None
    prompts: PromptSet | None = None
    baseline: Configuration | None = None
    grid: tuple[Configuration, ...] = ()
    warnings: tuple[str, ...] = ()
    forecast: ForecastPlan | None = None
    left_out: tuple[Excluded, ...] = ()
    slots: tuple[int, ...] = (1,)
    """Numbers of slots to serve at, of the recipe."""
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

    def checks(self, configuration: Configuration, dealt: Dealt) -> LiveChecks | None:
        """The checks of a finalist of this engine; None where nothing was replayed."""
        draft, settings = configuration.draft, configuration.settings
        if self.forecast is None or self.target is None or draft is None or settings is None:
            return None
        if configuration.key.engine != self.engine.name or configuration.key.ngram is not None:
            return None
        plan, live = self.forecast, configuration.live
        counts = SelfCheckStep(
            engine=self.engine,
            name=configuration.name,
            draft=draft.model,
            args=self.engine.as_draft(live.draft_args, live.target_args, live.context),
            settings=settings,
            profile=plan.profile,
            trace=plan.trace,
            live=dealt,
        )
        width = settings.n_max + 1
        control = ControlStep(self.engine, self.target, live.target_args, plan.trace, width)
        return LiveChecks(counts, control)

    def compare(self, configuration: Configuration, baseline: Dealt, dealt: Dealt) -> CompareStep:
        """The replies of a finalist of this engine next to those without a draft."""
        live = configuration.live
        return CompareStep(
            engine=self.engine,
            name=configuration.name,
            target=live.target,
            target_args=live.target_args,
            context=live.context,
            baseline=baseline,
            live=dealt,
        )


def checks_of(
    layouts: Sequence[Layout],
    finalists: Sequence[Configuration],
    dealt_to: Callable[[CandidateKey], Dealt | None],
) -> Iterator[Step[Any]]:
    """How far our counts are the engine's, of all ``finalists``, which were ``dealt_to``, and
    whether the first changes outputs: of that alone, since on long prompts it takes as long as a
    live run."""
    for number, configuration in enumerate(finalists):
        layout = next(m for m in layouts if m.engine.name == configuration.key.engine)
        dealt = dealt_to(configuration.key)
        assert dealt is not None, "finalists ran"
        checks = layout.checks(configuration, dealt)
        if checks is not None:
            yield checks.counts
        without = dealt_to(CandidateKey(configuration.key.engine))
        if without is not None and (number == 0 or layout.forecast is None):
            yield layout.compare(configuration, without, dealt)
            if checks is not None:
                yield checks.control


def dealt_into(prompts: Sequence[Prompt], count: int) -> tuple[tuple[Prompt, ...], ...]:
    """Prompts dealt into ``count`` shares, each with its part of every category; empty ones are
    left out."""
    dealt: list[list[Prompt]] = [[] for _ in range(count)]
    seen: dict[str, int] = {}
    for prompt in prompts:
        turn = seen.get(prompt.category, len(seen))
        dealt[turn % count].append(prompt)
        seen[prompt.category] = turn + 1
    return tuple(tuple(share) for share in dealt if share)


@dataclass(frozen=True)
class LiveGrid:
    """What all live steps of one recipe on one engine have in common.

    ``chat``: prompts are rendered by the target's own template; ``prompts``: those of live runs.
    """

    engine: Engine
    score: ScoreSpec
    target: Source
    chat: bool
    prompts: tuple[Prompt, ...]

    def configuration(
        self,
        draft: DraftPlan | None,
        settings: DraftSettings | None,
        cache_type: str | None,
        name: str,
        rival: Rival | None = None,
    ) -> Configuration:
        """One candidate's server. A rival needs no memory for a draft: its target runs as no
        draft's does."""
        score = self.score
        args = score.target.args if draft is not None else _baseline_args(score)
        first = draft.after if draft is not None else rival
        live = LiveStep(
            engine=self.engine,
            name=name,
            target=self.target,
            target_args=args.to_model_args(),
            context=score.context,
            draft=draft.model if draft else None,
            draft_args=draft_args(score.draft.args.to_model_args(), cache_type),
            settings=settings,
            prompts=self.prompts,
            max_tokens=score.max_tokens,
            sampling=score.sampling.to_sampling(),
            chat=self.chat,
            ngram=first.settings if first is not None else None,
            draft_context=draft.context if draft is not None else None,
        )
        return Configuration(name, draft, settings, cache_type, live, rival)

    def all(
        self,
        drafts: Sequence[DraftPlan],
        settings: Sequence[DraftSettings],
        rivals: Sequence[Rival] = (),
    ) -> tuple[Configuration, ...]:
        """Every draft with every setting; all drafts at one setting before the next setting,
        so that a budget that ends early has still seen every draft. Rivals come last."""
        score = self.score
        several_types = len(score.draft.cache_types) > 1
        drafting = tuple(
            self.configuration(
                draft,
                setting,
                cache_type,
                config_name(draft.name, setting, cache_type if several_types else None),
            )
            for cache_type in score.draft.cache_types
            for setting in settings
            for draft in drafts
        )
        return (
            *drafting,
            *(self.configuration(None, None, None, r.name, r) for r in rivals),
        )


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


def _baseline_args(score: ScoreSpec) -> ModelArgsSpec:
    return score.baseline.args if score.baseline is not None else score.target.args


def draft_args(args: ModelArgs, cache_type: str | None) -> ModelArgs:
    """``args`` with the KV cache in ``cache_type`` (``q8_0``; ``q8_0/q5_1``: keys, values), unless
    they name types."""
    if cache_type is None:
        return args
    keys, values = cache_halves(cache_type)
    return replace(
        args,
        cache_type_k=args.cache_type_k or keys,
        cache_type_v=args.cache_type_v or values,
    )


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
class OtherChain:
    """A sampling chain next to the deployed one, and what the target writes under it."""

    sampling: Sampling
    trace: Trace


@dataclass(frozen=True)
class ForecastPlan:
    """The steps below all forecasts of one recipe on one engine.

    ``verify``: the target's curve, None where its times are typed; ``plain`` that of no draft,
    which is the same where it runs with the same arguments. ``floor_prompts``: those of
    :attr:`floor`, if any. ``n_predict`` and ``context`` bound the drafts as the server's do.
    ``no_draft`` is its name for people. ``rivals`` are simulated on the trace's tokens, and priced
    as no draft is. Under every one of ``chains`` the target writes its own text, and every draft is
    replayed on that.
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
    several_cache_types: bool = False
    floor_prompts: tuple[str, ...] = ()
    no_draft: str = NO_DRAFT
    rivals: tuple[Rival, ...] = ()
    chains: tuple[OtherChain, ...] = ()

    @property
    def floor(self) -> DraftForecast | None:
        """The largest draft, replayed in batches of another shape: how much acceptance differs for
        no reason at all."""
        if not self.floor_prompts or not self.drafts:
            return None
        largest = max(self.drafts, key=lambda d: d.draft.predicted_tensor_bytes or 0)
        replay = replace(largest.replay, width=FLOOR_WIDTH, prompts=self.floor_prompts)
        return replace(largest, replay=replay)

    def curves(self) -> Iterator[CurveStep]:
        """Everything that is timed, one after the other."""
        found = (self.verify, self.plain, *(draft.curve for draft in self.drafts))
        yield from (curve for curve in dict.fromkeys(found) if curve is not None)

    def without(self, names: Collection[str]) -> ForecastPlan | None:
        """The plan without the drafts ``names``; None where that leaves nothing to forecast."""
        drafts = tuple(d for d in self.drafts if d.draft.name not in names)
        return replace(self, drafts=drafts) if drafts else None

    def on(self, trace: Trace) -> ForecastPlan:
        """The drafts on what another ``trace`` has, priced with the same times."""
        drafts = tuple(
            replace(d, replay=replace(d.replay, trace=trace, prompts=None)) for d in self.drafts
        )
        return replace(self, trace=trace, drafts=drafts, floor_prompts=(), rivals=(), chains=())

    def steps(self) -> Iterator[Step[Any]]:
        """Everything below the forecasts: traces, replays, the noise floor, and the timings."""
        yield self.trace
        yield from (chain.trace for chain in self.chains)
        yield from (draft.replay for draft in self.drafts)
        if self.floor is not None:
            yield self.floor.replay
        for chain in self.chains:
            yield from (draft.replay for draft in self.on(chain.trace).drafts)
        yield from self.curves()

    def key(self, draft: DraftForecast, settings: DraftSettings) -> CandidateKey:
        return draft_key(self.engine, draft.draft, settings, draft.cache_type)

    def is_of(self, draft: DraftForecast, key: CandidateKey) -> bool:
        """Whether ``key`` is ``draft`` under some setting."""
        return (draft.draft.name, draft.cache_type) == (key.draft, key.cache_type)

    def name(self, draft: DraftForecast, settings: DraftSettings) -> str:
        """The candidate's name for people, as in the live score."""
        cache_type = draft.cache_type if self.several_cache_types else None
        return config_name(draft.draft.name, settings, cache_type)
