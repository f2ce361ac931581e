"""Recipes from what the field has: quantization scripts, ``.recipe`` files, rule lists.

Scripts are read, never run (:mod:`cook.recipe.foreign.bash`). What comes out is YAML that has
been loaded, and whose rules give every tensor the type that the original gives it. With a
model's tensors, a group stands where the rules give all of its tensors one type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.documents.tree import resolve_scalar
from cook.errors import InputError, InternalError, Problem, RecipeError
from cook.formats.quant_types import LLAMA_CPP
from cook.recipe.foreign.format import Format
from cook.recipe.foreign.quants import (
    ForeignQuant,
    ForeignRule,
    Notes,
    format_of,
    read_quants,
    safe_name,
)
from cook.recipe.foreign.text import ForeignText, read_foreign
from cook.recipe.groups import Group, group_of, mtp_layers_of
from cook.recipe.pattern import PatternTimeout, parse_pattern
from cook.recipe.rules import FORCE_PATTERN, Rule, Tensor, quantizable, timeout_message
from cook.recipe.schema import MAX_QUANTS, MAX_RULES

if TYPE_CHECKING:
    from cook.recipe.load import LoadedRecipe
    from cook.recipe.rules import ModelTensors

_BLOCK = r"^(enc\.|dec\.)?blk\.[0-9]+\."
# As cook.recipe.groups tells them, for the tensors that an engine quantizes at all (so without
# norms, biases and vectors). Each is true by itself, so their order does not matter. Which layers
# are for multi-token prediction no name tells: `mtp` has no pattern, and neither has `other`.
PATTERNS: Mapping[Group, str] = {
    Group.ATTENTION: rf"{_BLOCK}((cross_)?attn_(?!rel_b|sinks)|indexer[._])",
    Group.DENSE_FFN: rf"{_BLOCK}ffn_((gate|up|down|up_gate|gate_up)\.weight$|latent_|routed_)",
    Group.SHARED_EXPERTS: rf"{_BLOCK}ffn_(?!gate_inp)[a-z0-9_]+_shexps?\.",
    Group.ROUTED_EXPERTS: (
        rf"{_BLOCK}ffn_((?!gate_inp)[a-z0-9_]+_(exps|chexps|exp)\.|(gate|up|down)\.[0-9]+\.)"
    ),
    Group.ROUTER: rf"{_BLOCK}(ffn_gate_inp|ffn_gate_tid2eid|exp_probs_b)",
    Group.EMBEDDINGS: r"^(token_embd|per_layer_token_embd|position_embd|token_types)\.",
    Group.OUTPUT: r"^(output|output_extra|cls|cls\.output|dense_2_out|dense_3_out)\.weight$",
}


@dataclass(frozen=True)
class WrittenRule:
    """A rule of the recipe to write, with the foreign rule that it stands for."""

    selector: str
    type: str
    of: ForeignRule
    comments: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Grouped:
    """``unused`` decide no tensor; ``covered``: every tensor that is quantized has a rule."""

    rules: tuple[WrittenRule, ...]
    unused: tuple[ForeignRule, ...] = ()
    covered: bool = False
    problems: tuple[Problem, ...] = ()


def selector_of(pattern: str) -> str:
    """The pattern as a recipe writes it: a text that is also a group's name is forced."""
    from pydantic_core import PydanticCustomError

    from cook.recipe.schema import check_selector

    try:
        plain = check_selector(pattern) not in frozenset(Group)
    except PydanticCustomError:
        plain = False
    return pattern if plain and not pattern.startswith(FORCE_PATTERN) else FORCE_PATTERN + pattern


def as_written(rules: Sequence[ForeignRule]) -> Grouped:
    """Every rule as it is, where no tensors are known."""
    return Grouped(
        tuple(WrittenRule(selector_of(r.pattern), r.type, r, r.comments) for r in rules),
        covered=bool(rules) and rules[-1].pattern in (".*", ".+", "."),
    )


def grouped(
    rules: Sequence[ForeignRule], tensors: Sequence[Tensor], architecture: str, flavour: str
) -> Grouped:
    """The same types for every one of ``tensors``, by groups where the rules allow.

    A group stands where the first rule that decides any of its tensors stood. Every rule before
    that one decides none of them, so none is taken away from it or given to it.
    """
    names = [
        t.name for t in tensors if quantizable(t.name, t.shape, t.type_name, flavour, architecture)
    ]
    decided: dict[str, int] = {}
    for index, rule in enumerate(rules):
        try:
            hits = parse_pattern(rule.pattern).search_all(names)
        except PatternTimeout:
            problem = rule.at.problem(timeout_message(Rule(rule.pattern, rule.type)))
            return Grouped((), problems=(problem,))
        for name in hits:
            decided.setdefault(name, index)
    layers = mtp_layers_of(t.name for t in tensors)
    members: dict[Group, list[str]] = {}
    for name in names:
        members.setdefault(group_of(name, architecture, layers), []).append(name)
    by_group: dict[int, list[tuple[Group, str]]] = {}
    grouped_names: set[str] = set()
    for group, inside in members.items():
        types = {rules[decided[n]].type if n in decided else None for n in inside}
        if len(types) == 1 and None not in types:
            first = min(decided[n] for n in inside)
            by_group.setdefault(first, []).append((group, rules[first].type))
            grouped_names.update(inside)
    needed = {index for name, index in decided.items() if name not in grouped_names}
    order = list(Group)
    written: list[WrittenRule] = []
    for index, rule in enumerate(rules):
        groups = sorted(by_group.get(index, ()), key=lambda item: order.index(item[0]))
        here = [WrittenRule(str(group), type_name, rule) for group, type_name in groups]
        if index in needed:
            here.append(WrittenRule(selector_of(rule.pattern), rule.type, rule))
        if here:
            written += [replace(here[0], comments=rule.comments), *here[1:]]
    unused = tuple(r for i, r in enumerate(rules) if i not in set(decided.values()))
    return Grouped(tuple(written), unused, covered=len(decided) == len(names))


_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(?:://[A-Za-z0-9_./@+~-]+)?", re.ASCII)


@dataclass(frozen=True)
class WrittenQuant:
    name: str
    type: str
    mixture: str
    rules: Grouped
    type_note: str | None = None
    imatrix: bool = True


@dataclass(frozen=True)
class WrittenRecipe:
    """What the YAML says; ``header`` are comment lines (None for an empty one)."""

    name: str
    header: tuple[str | None, ...]
    engine: str | None
    source: str
    source_note: str | None
    imatrix: str | None
    allow_requantize: bool
    quants: tuple[WrittenQuant, ...]


def to_yaml(recipe: WrittenRecipe) -> str:
    """The text of the recipe."""
    lines = [*_comment(recipe.header, 0), "version: 1", f"name: {scalar(recipe.name)}"]
    if recipe.engine:
        lines.append(f"engine: {recipe.engine}")
    lines += ["", "model:", _noted(f"  source: {scalar(recipe.source)}", recipe.source_note)]
    if recipe.allow_requantize:
        lines.append("  allow_requantize: true")
    if recipe.imatrix is not None:
        lines += ["", "imatrix:", f"  file: {scalar(recipe.imatrix)}"]
    lines += ["", "quants:"]
    for number, quant in enumerate(recipe.quants):
        lines += [""] if number else []
        lines += _quant_yaml(quant, recipe.imatrix is not None)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _quant_yaml(quant: WrittenQuant, with_imatrix: bool) -> list[str]:
    lines = [
        f"  - name: {scalar(quant.name)}",
        _noted(f"    type: {quant.type}", quant.type_note),
    ]
    if with_imatrix and not quant.imatrix:
        lines.append("    imatrix: false")
    rules = quant.rules.rules
    # With rules and no word of it, cook gives the base type to all that no rule hits.
    if quant.mixture != ("pure" if rules else "engine") and not quant.rules.covered:
        note = "what no rule hits gets the type that the engine thinks best"
        stated = f"    mixture: {quant.mixture}"
        lines.append(_noted(stated, note if quant.mixture == "engine" else None))
    if rules:
        lines.append("    rules:")
    for number, rule in enumerate(rules):
        if number and rule.comments:
            lines.append("")
        lines += _comment(rule.comments, 6)
        lines.append(f"      - {scalar(rule.selector)}: {rule.type}")
    return lines


def _comment(lines: Sequence[str | None], indent: int) -> list[str]:
    blank = " " * indent
    return ["" if line is None else f"{blank}#{_led(line)}" for line in lines]


def _led(line: str) -> str:
    return line if not line or line[0] in " !" else f" {line}"


def _noted(line: str, note: str | None) -> str:
    return f"{line}    # {note}" if note else line


def scalar(text: str) -> str:
    """``text`` as YAML that reads back as this very text."""
    plain = _PLAIN.fullmatch(text) and resolve_scalar(text) == text and not text.endswith(":")
    if plain and isinstance(resolve_scalar(text), str):
        return text
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


PLACEHOLDER = "MODEL-BF16.gguf"
"""What a model that is not named is called."""


@dataclass(frozen=True)
class Imported:
    """``text`` is the YAML, ``loaded`` the recipe that it is; ``warnings`` are about the file."""

    format: Format
    text: str
    loaded: LoadedRecipe
    warnings: tuple[Problem, ...]


@dataclass(frozen=True)
class Wishes:
    """What the user says beside the file; None where the file or a default decides."""

    format: Format | None = None
    name: str | None = None
    type: str | None = None
    model: Path | None = None


def import_recipe(path: Path, wishes: Wishes | None = None, to: Path | None = None) -> Imported:
    """The recipe that ``path`` says; ``to`` is where it will be kept (paths are relative to it).

    RecipeError with every fault at its file, line and column; InputError where the file as a
    whole cannot be used.
    """
    wishes = wishes or Wishes()
    source = read_foreign(path)
    format = wishes.format or format_of(path, source.text)
    notes = Notes()
    quants = read_quants(format, source, notes)
    notes.check()
    if not any(quant.rules or quant.type for quant in quants):
        raise InputError(f"{path}: no rules and no llama-quantize command in it", hint=_HINT)
    if len(quants) > MAX_QUANTS:
        raise InputError(f"{path}: {len(quants)} quants; a recipe has at most {MAX_QUANTS}")
    if wishes.name is not None and len(quants) == 1:
        quants = (replace(quants[0], name=wishes.name),)
    tensors = _tensors(wishes.model)
    recipe = _written(source, format, quants, wishes, tensors, notes)
    notes.check()
    text = to_yaml(recipe)
    loaded = _loaded(text, to or Path(f"{recipe.name}.yaml"))
    _verify(loaded, quants, tensors)
    return Imported(format, text, loaded, notes.warnings)


_HINT = "cook reads scripts with llama-quantize or custom=..., .recipe files and rule lists"


def _tensors(model: Path | None) -> ModelTensors | None:
    if model is None:
        return None
    from cook.recipe.check import read_tensors

    return read_tensors(model)


def _written(
    source: ForeignText,
    format: Format,
    quants: Sequence[ForeignQuant],
    wishes: Wishes,
    tensors: ModelTensors | None,
    notes: Notes,
) -> WrittenRecipe:
    first = quants[0]
    for other in quants[1:]:
        if other.source != first.source:
            notes.error(other.at, "a recipe has one source; an earlier command has another")
    imatrix = _one_of("imatrix", quants, notes)
    header, quants = _header(format, quants)
    file = Path(source.file).name
    origin, note = first.source, None
    if wishes.model is not None and wishes.model.suffix == ".gguf":
        origin = str(wishes.model)
    if origin is None:
        origin = PLACEHOLDER
        note = f"{file} does not name it: put your unquantized GGUF here"
        notes.warn(source.at(0), "the source model is not named here", "set `model: source:`")
    _check_sources(first, origin, imatrix, notes)
    output = Path(first.output).stem if first.output and len(quants) == 1 else first.name
    output = first.model or output
    return WrittenRecipe(
        name=safe_name(wishes.name or output),
        header=(f"Imported by `cook recipes import` from {file}.", *header),
        engine=_one_of("flavour", quants, notes),
        source=origin,
        source_note=note,
        imatrix=imatrix,
        allow_requantize=any(quant.allow_requantize for quant in quants),
        quants=tuple(_quant(quant, wishes, tensors, notes) for quant in quants),
    )


def _one_of(word: str, quants: Sequence[ForeignQuant], notes: Notes) -> str | None:
    """What the quants that say it have in common."""
    said: list[str] = []
    for quant in quants:
        value = getattr(quant, word)
        if value is not None and value not in said:
            said.append(value)
            if len(said) > 1:
                message = f"a recipe has one {word}: here {value}, before {said[0]}"
                notes.error(quant.at, message, "make a script of each, and import both")
    return said[0] if said else None


def _check_sources(quant: ForeignQuant, origin: str, imatrix: str | None, notes: Notes) -> None:
    from cook.recipe.sources import parse_source

    for text in filter(None, (origin, imatrix)):
        try:
            parse_source(text, Path())
        except ValueError as error:
            notes.error(quant.at, str(error))


def _header(
    format: Format, quants: Sequence[ForeignQuant]
) -> tuple[tuple[str | None, ...], tuple[ForeignQuant, ...]]:
    """A .recipe begins with comments about the whole: all but the last paragraph of them."""
    first = quants[0]
    comments = first.rules[0].comments if first.rules else ()
    if format is not Format.RECIPE or None not in comments:
        return (), tuple(quants)
    last = len(comments) - 1 - comments[::-1].index(None)
    head = replace(first.rules[0], comments=comments[last + 1 :])
    header = tuple(c for c in comments[:last] if not (c or "").strip().startswith("Base type:"))
    return header, (replace(first, rules=(head, *first.rules[1:])), *quants[1:])


def _quant(
    quant: ForeignQuant, wishes: Wishes, tensors: ModelTensors | None, notes: Notes
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
        safe_name(quant.name),
        _checked_base(base, quant),
        quant.mixture,
        rules,
        note,
        quant.imatrix is not None,
    )


def _rules(quant: ForeignQuant, tensors: ModelTensors | None) -> Grouped:
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
    from cook.recipe.schema import base_type

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
    loaded: LoadedRecipe, quants: Sequence[ForeignQuant], tensors: ModelTensors | None
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


def _types(quant: ForeignQuant, tensors: ModelTensors) -> dict[str, str | None]:
    """The rules' own answer for every tensor that is quantized, first match first."""
    from cook.recipe.pattern import parse_pattern
    from cook.recipe.rules import quantizable

    flavour, architecture = quant.flavour or LLAMA_CPP, tensors.architecture
    patterns = [(parse_pattern(rule.pattern), rule.type) for rule in quant.rules]
    return {
        t.name: next((type_name for p, type_name in patterns if p.search(t.name)), None)
        for t in tensors.tensors
        if quantizable(t.name, t.shape, t.type_name, flavour, architecture)
    }
