"""From a recipe's path to a checked menu: engine found, headers read, every fault told at once.

Nothing runs here but header reads, hashing of sources and the engine's own ``--version``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cook.engines.base import Engine, Flavour
from cook.engines.discover import discover
from cook.engines.mixture import mixture_types
from cook.errors import InputError, PrerequisiteError
from cook.formats.gguf import read_gguf
from cook.formats.gguf_file import GgufFile, TensorInfo
from cook.formats.quant_types import by_name
from cook.graph.digest import source as digest_source
from cook.graph.step import Source
from cook.hub import local_path
from cook.prompts.load import PromptSet, load_prompts, select
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.lint import lint, raise_problems
from cook.recipe.lint_files import prompts_file
from cook.recipe.load import LoadedRecipe, load_recipe
from cook.recipe.rules import Quant, Resolution, resolve
from cook.recipe.schema import Recipe
from cook.recipe.size import predicted_bytes
from cook.recipe.sources import HubRef
from cook.steps.curve import CurveStep, widths_for
from cook.steps.forecast import DraftForecast, ForecastPlan
from cook.steps.imatrix import ImatrixStep
from cook.steps.live import Model, Sampling
from cook.steps.memory import MemoryStep
from cook.steps.menu import NO_DRAFT, Configuration, DraftPlan, Menu, Scoring, draft_args
from cook.steps.perplexity import DivergenceStep, PerplexityStep
from cook.steps.quantize import QuantizeStep
from cook.steps.replay import ReplayStep
from cook.steps.trace import TraceStep
from cook.vocabulary import compare, read_vocabulary


@dataclass(frozen=True)
class Prepared:
    """A recipe ready to plan or build."""

    loaded: LoadedRecipe
    demo: bool
    menu: Menu
    files: tuple[Path, ...]
    """Every file that was read to lay it out, and the engine's own."""

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe


@dataclass(frozen=True)
class Scored:
    """The score's part of a menu."""

    target: Source
    prompts: PromptSet
    baseline: Configuration
    grid: tuple[Configuration, ...]
    forecast: ForecastPlan | None


def prepare(
    recipe: Path | str | LoadedRecipe,
    *,
    engine: str | None = None,
    demo: bool = False,
    strict: bool = False,
    plan_only: bool = False,
) -> Prepared:
    """Load, check and lay out ``recipe``; warnings are in the menu.

    Errors: RecipeError with every fault of the recipe; PrerequisiteError when the engine at
    hand lacks a type, naming the engine that has it; InputError for unusable files.
    """
    from cook.recipe.demo import apply_demo

    loaded = recipe if isinstance(recipe, LoadedRecipe) else load_recipe(recipe)
    if demo:
        loaded = replace(loaded, recipe=apply_demo(loaded.recipe))
    chosen = _engine(loaded, engine)
    return Laying(loaded, demo, chosen, strict, plan_only).lay()


class Laying:
    """Lays out one menu; holds what its parts share while it does."""

    def __init__(
        self, loaded: LoadedRecipe, demo: bool, engine: Engine, strict: bool, plan_only: bool
    ) -> None:
        self.loaded = loaded
        self.recipe = loaded.recipe
        self.demo = demo
        self.engine = engine
        self.strict = strict
        self.plan_only = plan_only
        self.warnings: list[str] = []
        self.read: list[Path] = []

    def lay(self) -> Prepared:
        source = self._model(self.recipe.model.source) if self.recipe.model else None
        resolutions = self._checked(source)
        corpus = self._corpus()
        imatrix = self._imatrix(source[0] if source else None)
        reference = self._reference(source, corpus)
        quants = [
            self._quant(quant, resolution, source, imatrix, reference, corpus)
            for quant, resolution in resolutions
            if source is not None
        ]
        drafts = (*quants, *self._ready_drafts(source, reference, corpus))
        scored = self._scoring(drafts)
        menu = Menu(
            engine=self.engine,
            imatrix=imatrix if isinstance(imatrix, ImatrixStep) else None,
            reference=reference,
            drafts=drafts,
            target=scored.target if scored else None,
            prompts=scored.prompts if scored else None,
            baseline=scored.baseline if scored else None,
            grid=scored.grid if scored else (),
            warnings=tuple(dict.fromkeys(self.warnings)),
            forecast=scored.forecast if scored else None,
        )
        files = (self.loaded.path, *self.read, *self.engine.files)
        return Prepared(self.loaded, self.demo, menu, tuple(dict.fromkeys(files)))

    def _model(self, ref: Path | HubRef) -> tuple[Source, GgufFile]:
        file = read_gguf(local_path(ref))
        self.read += file.shards
        return digest_source(file.shards, plan_only=self.plan_only), file

    def _text(self, ref: Path | HubRef) -> Source:
        path = local_path(ref)
        self.read.append(path)
        return digest_source([path], plan_only=self.plan_only)

    def _checked(self, source: tuple[Source, GgufFile] | None) -> list[tuple[Quant, Resolution]]:
        """Resolve every quant and raise every fault; warnings are kept."""
        found = lint(
            self.loaded,
            model=source[1] if source else None,
            flavour=self.engine.flavour,
            capabilities=self.engine.capabilities,
            engine_name=self.engine.name,
            strict=self.strict,
        )
        raise_problems(found)
        self.warnings += [str(p) for p in found]
        if source is None:
            return []
        return [(q, self._resolve(q, source[1])) for q in self.loaded.quants]

    def _resolve(self, quant: Quant, file: GgufFile) -> Resolution:
        return resolve(file.tensors, quant, self.engine.flavour, file.architecture)

    def _corpus(self) -> Source | None:
        return self._text(self.recipe.evaluate.corpus) if self.recipe.evaluate else None

    def _imatrix(self, source: Source | None) -> ImatrixStep | Source | None:
        spec = self.recipe.imatrix
        if spec is None or source is None:
            return None
        if spec.file is not None:
            return self._text(spec.file)
        if spec.corpus is None or spec.corpus == "trace":
            raise InputError(
                "imatrix.corpus: trace is not available yet",
                hint="give a text file as imatrix.corpus",
            )
        return ImatrixStep(
            engine=self.engine,
            model=source,
            corpus=self._text(spec.corpus),
            context=spec.context,
            chunks=spec.chunks,
            process_output=spec.process_output,
            minimum_coverage=spec.coverage.experts,
            otherwise=spec.coverage.otherwise,
            args=self.engine.placement("imatrix", spec.args.to_model_args()),
        )

    def _reference(
        self, source: tuple[Source, GgufFile] | None, corpus: Source | None
    ) -> PerplexityStep | None:
        spec = self.recipe.evaluate
        if spec is None or source is None or corpus is None:
            return None
        vocabulary = len(read_vocabulary(source[1]).tokens) if spec.divergence else None
        return PerplexityStep(
            engine=self.engine,
            name="source",
            model=source[0],
            corpus=corpus,
            context=spec.context,
            chunks=spec.chunks,
            vocabulary_size=vocabulary,
            args=self.engine.placement("perplexity", spec.args.to_model_args()),
        )

    def _quality(
        self, name: str, model: Model, reference: PerplexityStep | None, corpus: Source | None
    ) -> DivergenceStep | PerplexityStep | None:
        spec = self.recipe.evaluate
        if spec is None or corpus is None:
            return None
        args = self.engine.placement("perplexity", spec.args.to_model_args())
        if reference is not None and spec.divergence:
            return DivergenceStep(self.engine, name, model, reference, args)
        return PerplexityStep(
            self.engine, name, model, corpus, spec.context, spec.chunks, None, args
        )

    def _memory(self, name: str, model: Model) -> MemoryStep | None:
        score = self.recipe.score
        if score is None:
            return None
        args = score.draft.args.to_model_args()
        return MemoryStep(self.engine, name, model, args, score.context)

    def _quant(
        self,
        quant: Quant,
        resolution: Resolution,
        source: tuple[Source, GgufFile] | None,
        imatrix: ImatrixStep | Source | None,
        reference: PerplexityStep | None,
        corpus: Source | None,
    ) -> DraftPlan:
        assert source is not None, "quants have a source"
        assert self.recipe.model is not None, "quants have a source"
        known = {name: t for name, t in resolution.types.items() if t is not None}
        step = QuantizeStep(
            engine=self.engine,
            quant=quant.name,
            source=source[0],
            imatrix=imatrix if quant.use_imatrix else None,
            ftype=quant.ftype,
            rules=to_engine_rules(resolution),
            expected=tuple(sorted(known.items())),
            predicted_tensor_bytes=predicted_bytes(source[1].tensors, resolution),
            allow_requantize=self.recipe.model.allow_requantize,
        )
        if not resolution.complete:
            step, known = self._with_mixture(step, source[1], known)
        counts: dict[str, int] = {}
        for type_name in known.values():
            counts[type_name] = counts.get(type_name, 0) + 1
        return DraftPlan(
            name=quant.name,
            model=step,
            quantize=step,
            quality=self._quality(quant.name, step, reference, corpus),
            memory=self._memory(quant.name, step),
            predicted_tensor_bytes=step.predicted_tensor_bytes,
            elements=_elements(source[1]),
            type_counts=counts,
        )

    def _with_mixture(
        self, step: QuantizeStep, file: GgufFile, known: dict[str, str]
    ) -> tuple[QuantizeStep, dict[str, str]]:
        """``step`` with what the engine's own mixture gives the tensors that no rule hits."""
        anything = Path("imatrix") if step.imatrix is not None else None
        job = step.job(Path("unused"), anything, 1)
        types = mixture_types(self.engine, job, step.source.key)
        if types is None:
            return step, known
        sizes = [
            t.size_bytes if types[t.name] == t.type_name else _bytes_as(types[t.name], t)
            for t in file.tensors
        ]
        total = None if any(s is None for s in sizes) else sum(s or 0 for s in sizes)
        stated = tuple(sorted(types.items()))
        return replace(step, expected=stated, predicted_tensor_bytes=total), dict(types)

    def _ready_drafts(
        self,
        source: tuple[Source, GgufFile] | None,
        reference: PerplexityStep | None,
        corpus: Source | None,
    ) -> list[DraftPlan]:
        ready = [(d.name, *self._model(d.source)) for d in self.recipe.drafts]
        if self.recipe.include_source and source is not None:
            ready.insert(0, ("source", *source))
        return [self._ready(name, model, file, reference, corpus) for name, model, file in ready]

    def _ready(
        self,
        name: str,
        model: Source,
        file: GgufFile,
        reference: PerplexityStep | None,
        corpus: Source | None,
    ) -> DraftPlan:
        counts: dict[str, int] = {}
        for tensor in file.tensors:
            counts[tensor.type_name] = counts.get(tensor.type_name, 0) + 1
        return DraftPlan(
            name=name,
            model=model,
            quantize=None,
            quality=self._quality(name, model, reference, corpus),
            memory=self._memory(name, model),
            predicted_tensor_bytes=file.tensor_bytes,
            elements=_elements(file),
            type_counts=counts,
        )

    def _scoring(self, drafts: tuple[DraftPlan, ...]) -> Scored | None:
        score = self.recipe.score
        if score is None:
            return None
        target, file = self._model(score.target.source)
        self._require_one_vocabulary(file)
        self.read.append(prompts_file(score.prompts))
        prompts = select(load_prompts(score.prompts), score.limit, score.categories)
        self._warn_shared_devices()
        forecast = None
        live = prompts.prompts
        if score.method == "replay":
            prompts = _in_halves(prompts)
            forecast = self._forecast(target, file, prompts, drafts)
            # Finalists are chosen on the other half, so their live figures owe nothing to luck.
            live = tuple(p for p in prompts.prompts if p.half == "report")
        scoring = Scoring(self.engine, self.recipe, target, file, live)
        baseline = scoring.configuration(None, None, None, NO_DRAFT, None)
        return Scored(target, prompts, baseline, scoring.grid(drafts, baseline), forecast)

    def _forecast(
        self, target: Source, file: GgufFile, prompts: PromptSet, drafts: tuple[DraftPlan, ...]
    ) -> ForecastPlan:
        score = self.recipe.score
        assert score is not None, "asked only where there is a score"
        target_args = score.target.args.to_model_args()
        trace = TraceStep(
            engine=self.engine,
            target=target,
            args=target_args,
            context=score.context,
            prompts=prompts.prompts,
            max_tokens=score.max_tokens,
            sampling=Sampling(score.sampling.temperature, score.sampling.seed),
            chat="tokenizer.chat_template" in file.metadata,
        )
        settings = score.draft.settings()
        rollouts = max(s.n_max for s in settings) if any(s.p_min for s in settings) else 0
        widths = widths_for(max(s.n_max for s in settings))
        found = []
        for draft in drafts:
            for cache_type in score.draft.cache_types:
                args = draft_args(score.draft.args.to_model_args(), cache_type)
                several = len(score.draft.cache_types) > 1
                name = f"{draft.name} kv={cache_type}" if several else draft.name
                found.append(
                    DraftForecast(
                        draft,
                        cache_type,
                        ReplayStep(self.engine, name, draft.model, trace, args, rollouts),
                        CurveStep(self.engine, name, draft.model, trace, args, False, widths),
                    )
                )
        return ForecastPlan(
            trace=trace,
            verify=CurveStep(self.engine, "target", target, trace, target_args, True, widths),
            drafts=tuple(found),
            settings=settings,
            several_cache_types=len(score.draft.cache_types) > 1,
        )

    def _require_one_vocabulary(self, target: GgufFile) -> None:
        """Refuse a draft that the engine would silently not use, or translate (engines.md 5.2)."""
        refs = [d.source for d in self.recipe.drafts]
        if self.recipe.model is not None:
            refs.append(self.recipe.model.source)
        ours = read_vocabulary(target)
        for ref in refs:
            file = read_gguf(local_path(ref))
            differences = compare(ours, read_vocabulary(file))
            if differences:
                listed = "; ".join(str(d) for d in differences[:5])
                raise InputError(
                    f"{file.path}: cannot draft for {target.path}: {listed}",
                    hint="a draft needs its target's vocabulary; choose one of the same family",
                )

    def _warn_shared_devices(self) -> None:
        score = self.recipe.score
        assert score is not None, "asked only where there is a score"
        uses_gpu = bool(score.draft.args.n_gpu_layers or score.draft.args.devices)
        if uses_gpu and (score.baseline is None or score.baseline.args == score.target.args):
            self.warnings.append(
                "score.baseline: the draft takes device memory that the baseline does not use; "
                "give score.baseline.args that offload more, or the speedup flatters the draft"
            )


def _in_halves(prompts: PromptSet) -> PromptSet:
    """``prompts`` as they are where their halves balance; else dealt anew, one by one.

    A small ``limit`` may take every prompt from one half. InputError for a single prompt.
    """
    if len(prompts.prompts) < 2:
        raise InputError("replay needs two prompts at least: one half to choose on, one to report")
    picks = sum(p.half == "pick" for p in prompts.prompts)
    if abs(2 * picks - len(prompts.prompts)) <= len(prompts.categories):
        both = {p.half for p in prompts.prompts}
        if len(both) == 2:
            return prompts
    dealt = tuple(
        replace(p, half="report" if index % 2 else "pick")
        for index, p in enumerate(prompts.prompts)
    )
    return replace(prompts, prompts=dealt)


def _bytes_as(type_name: str, tensor: TensorInfo) -> int:
    """Bytes of ``tensor``'s data as ``type_name``."""
    return by_name(type_name).tensor_bytes(tensor.shape)


def _elements(file: GgufFile) -> int:
    return sum(tensor.elements for tensor in file.tensors)


def _engine(loaded: LoadedRecipe, asked: str | None) -> Engine:
    """The engine asked for, else the recipe's; PrerequisiteError names who has what it lacks."""
    if asked is not None:
        return discover(asked)
    wanted = loaded.recipe.engine
    try:
        return discover(wanted)
    except PrerequisiteError as error:
        if wanted in tuple(Flavour):
            needs = _only_in(loaded, wanted)
            reason = f"{error.message}; this recipe needs {needs}" if needs else error.message
            raise PrerequisiteError(reason, hint=error.hint) from None
        raise


def _only_in(loaded: LoadedRecipe, flavour: str) -> str:
    """Types of the recipe that only ``flavour`` can make, for the message."""
    wanted = {rule.type for quant in loaded.quants for rule in quant.rules}
    wanted |= {quant.default_type for quant in loaded.quants}
    own = sorted(t for t in wanted if by_name(t).engines == frozenset({flavour}))
    return f"{', '.join(own)}, which only {flavour} has" if own else ""
