"""Everything that can be known to be wrong with a recipe before anything runs.

:func:`lint` needs no engine and no model; with them it also checks types, rows, imatrix needs
and rules against the tensors. All findings at once, each at its place in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from cook.errors import PrerequisiteError, Problem, RecipeError
from cook.recipe.lint_imatrix import (
    NO_IMATRIX_HINT,
    ftype_needs_imatrix,
    imatrix_problems,
    type_needs_imatrix,
)
from cook.recipe.load import LoadedRecipe
from cook.recipe.pattern import PatternTimeout
from cook.recipe.raw_flags import flag_problems
from cook.recipe.rules import Matcher, Quant, Resolution, Rule, Tensor, resolve, some
from cook.recipe.yaml_tree import Location

if TYPE_CHECKING:
    from cook.engines.base import Capabilities, Engine
    from cook.formats.imatrix import Imatrix
    from cook.recipe.schema import Recipe


class Model(Protocol):
    """What is read of the source model; ``cook.formats.gguf.GgufFile`` satisfies it."""

    @property
    def tensors(self) -> Sequence[Tensor]: ...
    @property
    def architecture(self) -> str: ...


@dataclass(frozen=True)
class _At:
    """The engine at hand, as far as it is known."""

    flavour: str
    name: str
    capabilities: Capabilities | None


def lint(
    loaded: LoadedRecipe,
    recipe: Recipe | None = None,
    *,
    model: Model | None = None,
    flavour: str | None = None,
    capabilities: Capabilities | None = None,
    engine_name: str | None = None,
    imatrix: Imatrix | None = None,
    check_files: bool = True,
    strict: bool = False,
) -> tuple[Problem, ...]:
    """All findings, sorted by place; ``severity`` tells errors from warnings.

    ``recipe`` is the loaded one with changes (``--demo``). ``flavour``, ``capabilities`` and
    ``engine_name`` describe the engine at hand; without them types are checked against what is
    known of the flavour that the recipe asks for. ``imatrix`` is a ready one, read. ``strict``
    makes warnings errors. Findings of kind "prerequisite" mean another engine, not another
    recipe: :func:`raise_problems` tells them apart.
    """
    recipe = recipe or loaded.recipe
    found: list[Problem] = []
    if check_files:
        from cook.recipe.lint_files import file_problems

        found += file_problems(loaded, recipe)
    engine = _At(flavour, engine_name or flavour, capabilities) if flavour else None
    if engine is not None:
        found += _engine_problems(loaded, engine)
        found += flag_problems(loaded, recipe, engine.flavour, capabilities, engine.name)
    matcher = Matcher(model.tensors, model.architecture) if model is not None else None
    for quant in loaded.quants:
        found += _type_problems(quant)
        lacking = _capability_problems(quant, engine) if engine is not None else []
        found += lacking
        has_imatrix = recipe.imatrix is not None and quant.use_imatrix
        if model is not None and matcher is not None:
            found += _rule_problems(quant, matcher)
            if not lacking:
                wanted = flavour or flavour_of(loaded)
                resolution = resolve(
                    model.tensors, quant, wanted, model.architecture, matcher=matcher
                )
                found += resolution.problems
                found += _uncovered(quant, resolution)
                found += _requantizing(loaded, quant, model, resolution)
                found += imatrix_problems(
                    quant,
                    resolution,
                    wanted,
                    has_imatrix,
                    imatrix,
                    with_output=_collects_output(recipe),
                )
        elif engine is not None and not has_imatrix and not lacking:
            found += _imatrix_problems_by_rule(quant, engine.flavour)
    if strict:
        found = [replace(p, severity="error") for p in found]
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda p: (p.line, p.column, p.severity, p.message)))


def raise_problems(problems: Sequence[Problem], *, strict: bool = False) -> None:
    """Raise for errors (with ``strict`` also for warnings), if there are any.

    RecipeError (exit 2) with all of them; PrerequisiteError (exit 5), with all of them, where the
    recipe is sound and the engine at hand lacks something.
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
    from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name, ftype_by_name

    for name in loaded.recipe.engine:
        if name in (IK_LLAMA_CPP, LLAMA_CPP):
            return name
    for quant in loaded.quants:
        wanted = [by_name(r.type).engines for r in quant.rules]
        if any(LLAMA_CPP not in e for e in (*wanted, ftype_by_name(quant.ftype).engines)):
            return IK_LLAMA_CPP
    return LLAMA_CPP


def _engine_problems(loaded: LoadedRecipe, engine: _At) -> Iterator[Problem]:
    if len(loaded.recipe.engine) != 1:
        return
    asked = loaded.recipe.engine[0]
    if asked in ("llama.cpp", "ik_llama.cpp") and asked != engine.flavour:
        at = loaded.locations.at("engine")
        yield at.problem(
            f"the recipe needs {asked}; `{engine.name}` is {engine.flavour}",
            hint=_engine_hint(asked),
            kind="prerequisite",
        )


def _engine_hint(flavour: str) -> str:
    short = "ik" if flavour == "ik_llama.cpp" else "llama"
    return f"give a build of {flavour}: `--engine {short}=/path/to/{flavour}/build`"


def _type_problems(quant: Quant) -> Iterator[Problem]:
    from cook.formats.quant_types import by_name

    for rule in quant.rules:
        if not by_name(rule.type).quantizable:
            at = rule.at or _where(quant)
            message = f"{rule.type} is no type of stored weights: the engines abort on it"
            yield at.problem(message, hint="use q8_0")
    if quant.rules and quant.default_type in ("f32", "f16", "bf16"):
        message = f"quant {quant.name}: both engines ignore rules under base type {quant.ftype}"
        hint = "use a quantized base type such as Q8_0, and rules for what stays unquantized"
        yield _where(quant).problem(message, hint=hint)


def lacks_types(quant: Quant, engine: Engine) -> tuple[str, ...]:
    """The types that ``quant`` asks for and ``engine`` has not, its base type first."""
    from cook.formats.quant_types import by_name, ftype_by_name

    at = _At(engine.flavour, engine.name, engine.capabilities)
    found = []
    if _lacks(quant.ftype, ftype_by_name(quant.ftype).engines, at, base=True):
        found.append(quant.ftype)
    found += [r.type for r in quant.rules if _lacks(r.type, by_name(r.type).engines, at)]
    return tuple(dict.fromkeys(found))


def _lacks(name: str, engines: frozenset[str], engine: _At, *, base: bool = False) -> bool:
    have = engine.capabilities
    if engine.flavour not in engines:
        return True
    if have is None:
        return False
    if base:
        return name.upper() not in {f.upper() for f in have.ftypes}
    return name not in have.quant_types


def _capability_problems(quant: Quant, engine: _At) -> list[Problem]:
    from cook.formats.quant_types import by_name, ftype_by_name

    problems = []

    def lacks(at: Location, what: str, engines: frozenset[str]) -> None:
        others = sorted(engines - {engine.flavour})
        message = f"`{engine.name}` ({engine.flavour}) has no {what}"
        if engine.flavour in engines:
            hint = f"this build is older than {what}: update it"
        elif others:
            message += f"; {' and '.join(others)} has it"
            hint = _engine_hint(others[0])
        else:
            hint = "no engine has it"
        problems.append(at.problem(message, hint=hint, kind="prerequisite"))

    base = ftype_by_name(quant.ftype)
    if _lacks(quant.ftype, base.engines, engine, base=True):
        lacks(_where(quant), f"base type {quant.ftype}", base.engines)
    for rule in quant.rules:
        known = by_name(rule.type)
        if _lacks(rule.type, known.engines, engine):
            lacks(rule.at or _where(quant), rule.type, known.engines)
    return problems


def _rule_problems(quant: Quant, matcher: Matcher) -> Iterator[Problem]:
    """Rules of the quant's own list that match nothing, or are shadowed within that list."""
    seen: dict[str, tuple[set[str], list[Rule]]] = {}
    for rule in quant.rules:
        at = rule.at or _where(quant)
        try:
            hits = matcher.hits(rule)
        except PatternTimeout:
            continue  # resolve() tells it
        if not hits:
            # An inherited rule is told where its own quant is checked.
            if rule.owner == quant.name:
                hint = _case_hint(rule, matcher)
                message = f"rule `{rule.selector}` matches no tensor"
                yield at.problem(message, hint=hint, severity="warning")
            continue
        covered, earlier = seen.setdefault(rule.owner, (set(), []))
        if rule.owner == quant.name and hits <= covered:
            by = some([f"`{r.selector}`" for r in earlier if matcher.hits(r) & hits], 3)
            message = f"rule `{rule.selector}` is shadowed by earlier rules: {by}"
            yield at.problem(message, severity="warning")
        covered |= hits
        earlier.append(rule)


def _case_hint(rule: Rule, matcher: Matcher) -> str | None:
    lowered = replace(rule, selector=rule.selector.lower())
    if rule.selector != lowered.selector and matcher.hits(lowered):
        return f"tensor names are lower case: `{lowered.selector}`"
    return None


def _uncovered(quant: Quant, resolution: Resolution) -> Iterator[Problem]:
    left = [n for n, rule in resolution.rule_of.items() if rule is None]
    if left and quant.rules and not quant.mixture_stated:
        message = (
            f"quant {quant.name}: no rule hits {some(left)}, "
            f"which get {quant.default_type} from the base type {quant.ftype}"
        )
        hint = "add rules for them, or state `mixture: pure` or `mixture: engine`"
        yield _where(quant).problem(message, hint=hint, severity="warning")


def _requantizing(
    loaded: LoadedRecipe, quant: Quant, model: Model, resolution: Resolution
) -> Iterator[Problem]:
    spec = loaded.recipe.model
    if spec is None or spec.allow_requantize:
        return
    done = [
        t.name
        for t in model.tensors
        if t.name not in resolution.kept
        and t.type_name not in ("f32", "f16", "bf16")
        and resolution.types[t.name] != t.type_name
    ]
    if done:
        at = loaded.locations.at("model", "source")
        hint = "start from the BF16 or F16 file, or set `model.allow_requantize: true`"
        yield at.problem(f"the source is already quantized ({some(done)})", hint=hint)


def _collects_output(recipe: Recipe) -> bool:
    """Whether the imatrix covers the output tensor, as far as the recipe says: a ready one may."""
    spec = recipe.imatrix
    return spec is None or spec.file is not None or spec.process_output


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
