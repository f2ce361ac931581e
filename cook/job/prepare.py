"""From a recipe's path to checked layouts: engines found, headers read, all faults at once.

Nothing runs here but header reads, hashing of sources and the engines' own ``--version``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cook.documents.tree import Keys
from cook.engines.base import Engine, ServerJob
from cook.engines.discover import discover, named
from cook.engines.worker.compile import locate, parameter_names
from cook.engines.worker.loading import model_load, of_the_server
from cook.errors import InputError, PrerequisiteError, Problem
from cook.formats.gguf import GgufFile
from cook.formats.quant_types import by_name
from cook.formats.trace_file import TraceFile
from cook.graph.execute import closure
from cook.graph.step import Source, Step
from cook.job.drafting import DraftLayout
from cook.job.lay_score import as_rivals, lay_score, require_scorable
from cook.job.layout import Configuration, ForecastPlan, Layout
from cook.job.locate import SourceReader, local_path
from cook.output import Output
from cook.provenance import HubOrigin
from cook.recipe.check import headers_of, on_this_disk, recipe_problems
from cook.recipe.lint import files_of, flavour_of, missing_of, missing_types, raise_problems
from cook.recipe.load import LoadedRecipe, load_recipe
from cook.recipe.rules import ModelTensors
from cook.recipe.schema import Recipe
from cook.recipe.sources import HubRef
from cook.recipe.traps import MODEL, TARGET, models_at
from cook.record.record import Excluded
from cook.steps.convert import Converter, find_converter

TEMPLATE_TOKENS = 1024
"""More than any chat template puts around a prompt."""


@dataclass(frozen=True)
class Prepared:
    """A recipe ready to plan or build: a layout for each engine of the sweep."""

    loaded: LoadedRecipe
    demo: bool
    layouts: tuple[Layout, ...]
    files: tuple[Path, ...]
    """Every file that was read to lay it out, and the engines' own."""
    origins: tuple[HubOrigin, ...] = ()
    """What the recipe's ``hf://`` references meant."""
    left_bytes: int = 0
    """What a build would still download."""
    of_no_engine: tuple[str, ...] = ()
    """Warnings that are of no engine."""

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    def steps(self) -> dict[str, Step[Any]]:
        """By key all that a build may ask for before the first block is dealt, inputs first."""
        return closure(step for layout in self.layouts for step in layout.all_steps())

    @property
    def warnings(self) -> tuple[str, ...]:
        of_layouts = (w for layout in self.layouts for w in layout.warnings)
        return tuple(dict.fromkeys((*self.of_no_engine, *of_layouts)))


def prepare(
    recipe: Path | str | LoadedRecipe,
    *,
    engines: Sequence[str] = (),
    demo: bool = False,
    strict: bool = False,
    plan_only: bool = False,
    threads: int | None = None,
    unsafe_args: bool = False,
    named_engines: bool = False,
    output: Output | None = None,
) -> Prepared:
    """Load, check and lay out ``recipe`` on ``engines``, or those it names; warnings are kept.

    ``threads``: of target and drafts where the recipe states none; part of what is measured.
    ``unsafe_args``: for a recipe's path, as :func:`cook.recipe.load.load_recipe`.
    ``named_engines``: a file says ``engines``, not the user, so that none of them is a directory.

    On several engines each makes the quants whose types it has, and scores them itself.
    Errors: RecipeError with every fault of the recipe; PrerequisiteError when no engine at hand
    has a type, naming the engine that has it; InputError for unusable files.
    """
    from cook.recipe.demo import apply_demo, demo_lacks, demo_quants

    if isinstance(recipe, LoadedRecipe):
        loaded = recipe
    else:
        loaded = load_recipe(recipe, unsafe_args=unsafe_args)
    untried: tuple[str, ...] = ()
    if demo:
        untried = demo_lacks(loaded.quants)
        loaded = replace(
            loaded, recipe=apply_demo(loaded.recipe), quants=demo_quants(loaded.quants)
        )
    if threads is not None:
        loaded = replace(loaded, recipe=_with_threads(loaded.recipe, threads))
    loaded = replace(loaded, recipe=_with_trace(loaded.recipe))
    chosen = _engines(loaded, engines, named if named_engines else discover)
    reader = SourceReader(plan_only, _converter(loaded.recipe, chosen), output)
    layouts = tuple(
        _lay(share, engine, reader, strict, left_out, f"@{engine.name}" if len(chosen) > 1 else "")
        for engine, share, left_out in _shares(loaded, chosen)
    )
    files = (loaded.path, *reader.files, *(f for engine in chosen for f in engine.files))
    published = (w for publication in reader.publications.values() for w in publication.warnings)
    warnings = (*untried, *published)
    return Prepared(
        loaded,
        demo,
        layouts,
        tuple(dict.fromkeys(files)),
        reader.origins,
        reader.left_bytes,
        warnings,
    )


def engines_at_hand(loaded: LoadedRecipe, asked: Sequence[str] = ()) -> tuple[Engine, ...]:
    """The engines that a plan would take; unless ``asked`` for, none where they are not here, or
    are of another flavour than the recipe's types."""
    try:
        found = _engines(loaded, asked, discover)
    except PrerequisiteError:
        if asked:
            raise
        return ()
    free = not (asked or loaded.recipe.engine)
    return () if free and found[0].flavour != flavour_of(loaded) else found


def require_plannable(
    loaded: LoadedRecipe, engines: Sequence[str] = (), *, strict: bool = False
) -> None:
    """Raise what a plan of ``loaded`` on ``engines`` would refuse; nothing is fetched for it.

    Where the engines or models are not at hand, what is known without them.
    """
    recipe = loaded.recipe
    trace = recipe.score.trace if recipe.score is not None else None
    elsewhere = any(
        isinstance(file, HubRef) or (isinstance(file, Path) and file.is_dir())
        for file in (*files_of(recipe).values(), trace)
    ) or any(quant.tensors_from for quant in loaded.quants)
    if engines_at_hand(loaded, engines) and not elsewhere:
        prepare(loaded, engines=engines, strict=strict, plan_only=True)
    elif recipe.score is not None:
        recipe = recipe if isinstance(trace, HubRef) else _with_trace(recipe)
        headers, _ = headers_of(loaded, on_this_disk)
        require_scorable(recipe, flavour_of(loaded), headers)


def _converter(recipe: Recipe, engines: Sequence[Engine]) -> Converter | None:
    """What converts safetensors: of COOK_CONVERTER, else next to the first engine that has one."""
    if recipe.model is None:
        return None
    outtype = recipe.model.convert
    found = [find_converter(e.files[0].parent, outtype) for e in engines if e.files]
    return next((c for c in found if c is not None), None) or find_converter(None, outtype)


def _lay(
    loaded: LoadedRecipe,
    engine: Engine,
    reader: SourceReader,
    strict: bool,
    left_out: tuple[Excluded, ...],
    suffix: str,
) -> Layout:
    """One engine's layout; every fault is raised, warnings are in the layout."""
    recipe = loaded.recipe
    models = models_at(recipe)
    here = {place for place, ref in models.items() if place == MODEL or isinstance(ref, Path)}
    if not reader.plan_only and here != set(models):  # before a build fetches the rest
        _require_sound(loaded, engine, reader, strict, here)
    model, found = _require_sound(loaded, engine, reader, strict, set(models))
    source = reader.model(recipe.model.source) if recipe.model is not None else None
    parts = {quant.part for quant in loaded.quants} or {None}
    drafting = DraftLayout(engine, recipe, reader, source, suffix, parts)
    resolved = [
        (quant, model.resolve(quant, engine.flavour))
        for quant in loaded.quants
        if model is not None
    ]
    files = (*drafting.quants(resolved), *drafting.ready())
    first = (
        as_rivals(engine.flavour, recipe.score.draft.after, suffix)
        if recipe.score is not None
        else ()
    )
    layout = Layout(
        engine=engine,
        imatrix=drafting.imatrix if not isinstance(drafting.imatrix, Source) else None,
        reference=drafting.reference,
        drafts=tuple(drafting.behind(drafting.in_contexts(files), first)),
        left_out=left_out,
    )
    layout = lay_score(layout, recipe, reader, suffix)
    warnings = [*map(str, found), *drafting.warnings(files)]
    if layout.baseline is not None:
        _check_arguments(engine, (layout.baseline, *layout.grid))
    if layout.forecast is not None:
        warnings += _left_to_the_server(engine, layout.forecast)
    return replace(layout, warnings=tuple(dict.fromkeys((*warnings, *layout.warnings))))


def _require_sound(
    loaded: LoadedRecipe,
    engine: Engine,
    reader: SourceReader,
    strict: bool,
    places: Collection[Keys],
) -> tuple[ModelTensors | None, tuple[Problem, ...]]:
    """The source's tensors and the warnings; every fault that the models at ``places`` show is
    raised."""
    recipe = loaded.recipe
    roles = {MODEL: "model", TARGET: "target"}
    roles |= {("drafts", i, "source"): draft.name for i, draft in enumerate(recipe.drafts)}

    def read(place: Keys, ref: Path | HubRef) -> GgufFile | None:
        return reader.model(ref, roles[place]).file if place in places else None

    headers, unread = headers_of(loaded, read)
    own = headers.get(MODEL)
    model = ModelTensors(own.tensors, own.architecture) if own is not None else None
    imatrix_file = recipe.imatrix.file if recipe.imatrix else None
    found = recipe_problems(
        loaded,
        engine.flavour,
        headers,
        engine=engine,
        model=model,
        imatrix=reader.imatrix(imatrix_file) if own and imatrix_file else None,
        strict=strict,
    )
    raise_problems((*found, *unread))
    return model, found


def _check_arguments(engine: Engine, configurations: Sequence[Configuration]) -> None:
    """InputError or PrerequisiteError for an argument that the server does not know."""
    lives = [one.live for one in configurations]
    prompts = {prompt.whole for live in lives for prompt in live.prompts}
    longest = max((len(text.encode()) for text in prompts), default=0) + TEMPLATE_TOKENS
    apart = {(o.target_args, o.draft_args, o.settings, o.draft_context, o.head): o for o in lives}
    for live in apart.values():
        draft = Path("draft.gguf") if live.settings is not None else None
        job = ServerJob(
            *(Path("target.gguf"), live.target_args, live.context),
            *(draft, live.draft_args, live.settings),
            draft_context=live.draft_context,
            head=live.head,
        )
        engine.server_command(job, 1, None)
        # A token holds a byte or more, and a prompt leaves room for its reply.
        engine.check_prompts(job, min(longest, live.context - live.max_tokens))


def _left_to_the_server(engine: Engine, forecast: ForecastPlan) -> list[str]:
    """Warnings about flags that replay and timings go without.

    PrerequisiteError for an argument that they cannot follow, before anything runs.
    """
    models = [("draft", draft.replay.args) for draft in forecast.every]
    if forecast.verify is not None:
        models.insert(0, ("target", forecast.verify.args))
    try:
        known = parameter_names(locate(engine))
    except PrerequisiteError:
        known = None  # no worker can be built: its step says so
    warnings = []
    for model, args in dict.fromkeys(models):
        load = model_load(engine, Path(model), args, forecast.context)
        if known is not None:
            load.known_to(known)
        if flags := of_the_server(engine.flavour, args.extra):
            named = ", ".join(f"`{flag}`" for flag in flags)
            warnings.append(f"{model}: {named}: the server's alone; replay and timings go without")
    return warnings


def _shares(
    loaded: LoadedRecipe, engines: Sequence[Engine]
) -> list[tuple[Engine, LoadedRecipe, tuple[Excluded, ...]]]:
    """What each engine makes of a recipe, with what it leaves to others; one engine makes all, or
    says what it cannot make. So does the first of several, of what none of them can make."""
    if len(engines) == 1:
        return [(engines[0], loaded, ())]
    shares = []
    for engine in engines:
        quants, drafts, left_out = [], [], []
        for quant in loaded.quants:
            missing = missing_types(quant, engine)
            no_engine = all(missing_types(quant, other) for other in engines)
            if not missing or (no_engine and engine is engines[0]):
                quants.append(quant)
            elif not no_engine:
                left_out.append(_left_to_others(engine, quant.name, missing))
        for draft in loaded.recipe.drafts:
            nowhere = set.intersection(*(set(missing_of(draft.output, one)) for one in engines))
            absent = [name for name in missing_of(draft.output, engine) if name not in nowhere]
            left_out += [
                _left_to_others(engine, f"{draft.name} output={name}", [name]) for name in absent
            ]
            kept = tuple(name for name in draft.output if name not in absent)
            if kept or not draft.output:
                drafts.append(draft.model_copy(update={"output": kept}))
        # Chosen by hand, so the recipe's own choice of an engine no longer stands.
        changes = {"engine": (), "drafts": tuple(drafts)}
        recipe = loaded.recipe.model_copy(update=changes)
        share = replace(loaded, recipe=recipe, quants=tuple(quants))
        shares.append((engine, share, tuple(left_out)))
    return shares


def _left_to_others(engine: Engine, name: str, missing: Sequence[str]) -> Excluded:
    reason = f"{engine.name} ({engine.flavour}) has no {', '.join(missing)}"
    return Excluded(f"{name}@{engine.name}", reason)


def _with_trace(recipe: Recipe) -> Recipe:
    """``recipe`` with the reply length of the trace that it names, where it states none."""
    score = recipe.score
    if score is None or score.trace is None:
        return recipe
    path = local_path(score.trace)
    recorded = TraceFile(path).header.n_predict
    if "max_tokens" in score.model_fields_set and score.max_tokens != recorded:
        raise InputError(
            f"{path}: was recorded with max_tokens {recorded}, not {score.max_tokens}",
            hint="leave it unsaid, or record another trace: cook trace",
        )
    return recipe.model_copy(update={"score": score.model_copy(update={"max_tokens": recorded})})


def _with_threads(recipe: Recipe, threads: int) -> Recipe:
    """``recipe`` whose target, baseline and drafts run on ``threads``, unless it says otherwise."""
    score = recipe.score
    if score is None:
        return recipe
    changes = {
        name: spec.model_copy(update={"args": spec.args.model_copy(update={"threads": threads})})
        for name, spec in (
            ("target", score.target),
            ("baseline", score.baseline),
            ("draft", score.draft),
        )
        if spec is not None and not spec.args.threads
    }
    return recipe.model_copy(update={"score": score.model_copy(update=changes)})


def _engines(
    loaded: LoadedRecipe, asked: Sequence[str], find: Callable[[str], Engine]
) -> tuple[Engine, ...]:
    """The engines asked for, else the recipe's, else the default one. PrerequisiteError says which
    of its types only an engine of the recipe's can make."""
    found = [find(name) for name in asked]
    for name in () if asked else loaded.recipe.engine:
        try:
            found.append(named(name))
        except PrerequisiteError as error:
            types = {rule.type for quant in loaded.quants for rule in quant.rules}
            types |= {quant.default_type for quant in loaded.quants}
            own = sorted(t for t in types if by_name(t).engines == frozenset({name}))
            if not own:
                raise
            message = f"{error.message}; this recipe needs {', '.join(own)}, which only {name} has"
            raise PrerequisiteError(message, hint=error.hint) from None
    found = found or [discover(None)]
    names = [engine.name for engine in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"two engines are called {', '.join(twice)}", hint="name them: --engine NAME=DIRECTORY"
        )
    return tuple(found)
