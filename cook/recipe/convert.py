"""Recipes from what the field has: quantization scripts, ``.recipe`` files, rule lists.

Scripts are read, never run (:mod:`cook.recipe.convert_bash`). What comes out is YAML that has
been loaded, and whose rules give every tensor the type that the original gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError, InternalError, Problem, RecipeError
from cook.formats.type_table import LLAMA_CPP
from cook.recipe.convert_command import ForeignQuant
from cook.recipe.convert_groups import Grouped, as_written, grouped
from cook.recipe.convert_read import Kind, kind_of, read_quants, safe_name
from cook.recipe.convert_rules import ForeignRule, Notes
from cook.recipe.convert_text import Source, read_source
from cook.recipe.convert_yaml import WrittenQuant, WrittenRecipe, to_yaml
from cook.recipe.quant_spec import MAX_RULES

if TYPE_CHECKING:
    from cook.recipe.check import TensorList
    from cook.recipe.load import LoadedRecipe

PLACEHOLDER = "MODEL-BF16.gguf"


@dataclass(frozen=True)
class Imported:
    """``text`` is the YAML, ``loaded`` the recipe that it is; ``warnings`` are about the file."""

    kind: Kind
    text: str
    loaded: LoadedRecipe
    warnings: tuple[Problem, ...]


@dataclass(frozen=True)
class Wishes:
    """What the user says beside the file; None where the file or a default decides."""

    kind: Kind | None = None
    name: str | None = None
    type: str | None = None
    model: Path | None = None


def import_recipe(path: Path, wishes: Wishes | None = None, to: Path | None = None) -> Imported:
    """The recipe that ``path`` says; ``to`` is where it will be kept (paths are relative to it).

    RecipeError with every fault at its file, line and column; InputError where the file as a
    whole cannot be used.
    """
    wishes = wishes or Wishes()
    source = read_source(path)
    kind = wishes.kind or kind_of(path, source.text)
    notes = Notes()
    quants = read_quants(kind, source, notes)
    notes.check()
    if not any(quant.rules or quant.type for quant in quants):
        raise InputError(f"{path}: no rules and no llama-quantize command in it", hint=_HINT)
    if wishes.name is not None and len(quants) == 1:
        quants = (replace(quants[0], name=wishes.name),)
    tensors = _tensors(wishes.model)
    recipe = _written(source, kind, quants, wishes, tensors, notes)
    notes.check()
    text = to_yaml(recipe)
    loaded = _loaded(text, to or Path(f"{recipe.name}.yaml"))
    _verify(loaded, quants, tensors)
    return Imported(kind, text, loaded, notes.warnings)


_HINT = "cook reads scripts with llama-quantize or custom=..., .recipe files and rule lists"


def _tensors(model: Path | None) -> TensorList | None:
    if model is None:
        return None
    from cook.recipe.check import read_tensors

    return read_tensors(model)


def _written(
    source: Source,
    kind: Kind,
    quants: Sequence[ForeignQuant],
    wishes: Wishes,
    tensors: TensorList | None,
    notes: Notes,
) -> WrittenRecipe:
    first = quants[0]
    for other in quants[1:]:
        for word in ("source", "imatrix", "flavour"):
            if getattr(other, word) != getattr(first, word):
                notes.error(other.at, f"a recipe has one {word}; an earlier command has another")
    header, quants = _header(kind, quants)
    file = Path(source.file).name
    origin, note = first.source, None
    if wishes.model is not None and wishes.model.suffix == ".gguf":
        origin = str(wishes.model)
    if origin is None:
        origin = PLACEHOLDER
        note = f"{file} does not name it: put your unquantized GGUF here"
        notes.warn(source.at(0), "the source model is not named here", "set `model: source:`")
    _check_sources(first, origin, notes)
    output = Path(first.output).stem if first.output and len(quants) == 1 else first.name
    output = first.model or output
    return WrittenRecipe(
        name=safe_name(wishes.name or output),
        header=(f"Imported by `cook recipes import` from {file}.", *header),
        engine=first.flavour,
        source=origin,
        source_note=note,
        imatrix=first.imatrix,
        allow_requantize=any(quant.allow_requantize for quant in quants),
        quants=tuple(_quant(quant, wishes, tensors, notes) for quant in quants),
    )


def _check_sources(quant: ForeignQuant, origin: str, notes: Notes) -> None:
    from cook.recipe.sources import parse_source

    for text in filter(None, (origin, quant.imatrix)):
        try:
            parse_source(text, Path())
        except ValueError as error:
            notes.error(quant.at, str(error))


def _header(
    kind: Kind, quants: Sequence[ForeignQuant]
) -> tuple[tuple[str | None, ...], tuple[ForeignQuant, ...]]:
    """A .recipe begins with comments about the whole: all but the last paragraph of them."""
    first = quants[0]
    comments = first.rules[0].comments if first.rules else ()
    if kind is not Kind.RECIPE or None not in comments:
        return (), tuple(quants)
    last = len(comments) - 1 - comments[::-1].index(None)
    head = replace(first.rules[0], comments=comments[last + 1 :])
    header = tuple(c for c in comments[:last] if not (c or "").strip().startswith("Base type:"))
    return header, (replace(first, rules=(head, *first.rules[1:])), *quants[1:])


def _quant(
    quant: ForeignQuant, wishes: Wishes, tensors: TensorList | None, notes: Notes
) -> WrittenQuant:
    rules = _rules(quant, tensors)
    notes.problems += rules.problems
    for rule in rules.unused:
        notes.warn(rule.at, f"`{rule.pattern[:60]}` decides no tensor of the model: left out")
    if len(rules.rules) > MAX_RULES:
        message = f"{len(rules.rules)} rules: a quant has at most {MAX_RULES}"
        notes.error(quant.at, message, "with --model, rules that say what a group says become one")
    base, note = wishes.type or quant.type, None
    if base is None:
        base = _common_base(quant.rules)
        note = "not said in the file: the type of the most rules"
        notes.warn(quant.at, f"no base type is named: {base}, as most rules say", "--type TYPE")
    return WrittenQuant(
        safe_name(quant.name), _checked_base(base, quant), quant.mixture, rules, note
    )


def _rules(quant: ForeignQuant, tensors: TensorList | None) -> Grouped:
    if tensors is None or not quant.rules:
        return as_written(quant.rules)
    flavour = quant.flavour or LLAMA_CPP
    return grouped(quant.rules, tensors.tensors, tensors.architecture, flavour)


def _common_base(rules: Sequence[ForeignRule]) -> str:
    from cook.formats.quant_types import FTYPES

    base_of: dict[str, str] = {}
    for ftype in FTYPES.values():
        if ftype.default not in ("f32", "f16", "bf16"):
            base_of.setdefault(ftype.default, ftype.name)
    counts = Counter(base_of[rule.type] for rule in rules if rule.type in base_of)
    return counts.most_common(1)[0][0] if counts else "Q8_0"


def _checked_base(base: str, quant: ForeignQuant) -> str:
    from cook.recipe.fields import base_type

    try:
        return base_type(base)
    except InputError as error:
        raise RecipeError([quant.at.problem(error.message, hint=error.hint)]) from None


def _loaded(text: str, path: Path) -> LoadedRecipe:
    from cook.recipe.load import parse_recipe

    try:
        return parse_recipe(text, path)
    except RecipeError as error:
        raise InternalError(f"the imported recipe does not load: {error.problems[0]}") from None


def _verify(
    loaded: LoadedRecipe, quants: Sequence[ForeignQuant], tensors: TensorList | None
) -> None:
    """InternalError unless the recipe says, rule for rule or tensor for tensor, what was read."""
    from cook.recipe.rules import FORCE_PATTERN, resolve

    for quant, found in zip(quants, loaded.quants, strict=True):
        if tensors is None:
            said = [(r.selector.removeprefix(FORCE_PATTERN), r.type) for r in found.rules]
            same = said == [(r.pattern, r.type) for r in quant.rules]
        else:
            written = _types(quant, tensors)
            types = resolve(
                tensors.tensors, found, quant.flavour or LLAMA_CPP, tensors.architecture
            )
            hit = {
                name: None if index is None else found.rules[index].type
                for name, index in types.rule_of.items()
            }
            same = all(hit[name] == type_name for name, type_name in written.items())
        if not same:
            raise InternalError(f"the imported recipe does not say what `{quant.name}` says")


def _types(quant: ForeignQuant, tensors: TensorList) -> dict[str, str | None]:
    """The rules' own answer for every tensor that is quantized, first match first."""
    from cook.recipe.pattern import parse_pattern
    from cook.recipe.quantizable import quantizable

    flavour, architecture = quant.flavour or LLAMA_CPP, tensors.architecture
    patterns = [(parse_pattern(rule.pattern), rule.type) for rule in quant.rules]
    return {
        t.name: next((type_name for p, type_name in patterns if p.search(t.name)), None)
        for t in tensors.tensors
        if quantizable(t.name, t.shape, t.type_name, flavour, architecture)
    }
