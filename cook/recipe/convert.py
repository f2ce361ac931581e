"""Recipes from what the field has: quantization scripts, ``.recipe`` files, rule lists.

Scripts are read, never run (:mod:`cook.recipe.convert_bash`). What comes out is YAML that has
been loaded, and whose rules give every tensor the type that the original gives it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError, InternalError, Problem, RecipeError
from cook.formats.type_table import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.convert_command import ForeignQuant, is_quantize, quant_of
from cook.recipe.convert_groups import Grouped, as_written, grouped
from cook.recipe.convert_rules import (
    ForeignRule,
    Notes,
    custom_block,
    custom_q,
    distinct_comments,
    rule_lines,
    tensor_types,
)
from cook.recipe.convert_text import Source, Spanned, read_source
from cook.recipe.convert_yaml import WrittenQuant, WrittenRecipe, to_yaml
from cook.recipe.quant_spec import MAX_RULES

if TYPE_CHECKING:
    from cook.recipe.check import TensorList
    from cook.recipe.load import LoadedRecipe

PLACEHOLDER = "MODEL-BF16.gguf"
_HUB = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)", re.ASCII)
_MODEL = re.compile(r"^#+\s*Model name:\s*(\S{1,64})\s*$", re.MULTILINE)
_BASE = re.compile(r"^#+\s*Base type:\s*(\w{1,32})\s*$", re.MULTILINE)


class Kind(StrEnum):
    """What is converted from."""

    SCRIPT = "script"
    CUSTOM_Q = "custom-q"
    RECIPE = "recipe"
    TENSOR_TYPE_FILE = "tensor-type-file"


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
    quants = _READERS[kind](source, _stem(path), notes)
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


def kind_of(path: Path, text: str) -> Kind:
    """What the file is, by its name, else by what it looks like."""
    if path.suffix in (".sh", ".bash"):
        return Kind.SCRIPT
    if path.suffix == ".recipe":
        return Kind.RECIPE
    if text.startswith("#!") or re.search(r"llama-quantize|^\s*\w+=[\"'$]", text, re.MULTILINE):
        return Kind.SCRIPT
    if re.search(r"^\s*#", text, re.MULTILINE):
        return Kind.RECIPE
    words = text.split()
    if len(words) == 1 and re.search(r"=[A-Za-z0-9_]+,", words[0]):
        return Kind.CUSTOM_Q
    return Kind.TENSOR_TYPE_FILE


def _script(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    from cook.recipe.convert_bash import parse_script
    from cook.recipe.convert_shell import Shell

    shell = Shell()
    quants: list[ForeignQuant] = []
    calls = 0
    for call in shell.calls(parse_script(source)):
        talks = isinstance(call.words[0], Spanned) and call.words[0].text in ("echo", "ls", "[")
        if talks or not any(map(is_quantize, call.words)):
            continue
        calls += 1
        if (quant := quant_of(source, call, name, notes)) is not None:
            quants.append(quant)
    if calls:
        return _named_apart(quants)
    # Only the block: its rules are those of the variable that holds them.
    blocks = {k: v for k, v in shell.variables.items() if isinstance(v, Spanned) and "=" in v.text}
    block = blocks.get("custom") or (next(iter(blocks.values())) if len(blocks) == 1 else None)
    if block is None:
        return ()
    rules = distinct_comments(custom_block(source, block, notes))
    return (ForeignQuant(name, rules, source.at(block.start), flavour=IK_LLAMA_CPP),)


def _custom_q(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(custom_q(source, source.whole.strip(), notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=IK_LLAMA_CPP),)


def _recipe(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(rule_lines(source, source.whole, notes))
    base = _BASE.search(source.text)
    found, model = _HUB.search(source.text), _MODEL.search(source.text)
    # The suite's files are called MODEL.AUTHOR-SIZE...: the quant's name need not repeat it.
    short = _stem(Path(source.file)) if model is None else Path(source.file).stem
    return (
        ForeignQuant(
            _safe(short.removeprefix(f"{model[1]}.")) if model else short,
            rules,
            source.at(0),
            base[1] if base else None,
            _needs(rules),
            source=f"hf://{found[1]}" if found else None,
            model=model[1] if model else None,
        ),
    )


def _tensor_types(source: Source, name: str, notes: Notes) -> tuple[ForeignQuant, ...]:
    rules = tuple(tensor_types(source, source.whole, notes))
    return (ForeignQuant(name, rules, source.at(0), flavour=LLAMA_CPP),)


_READERS = {
    Kind.SCRIPT: _script,
    Kind.CUSTOM_Q: _custom_q,
    Kind.RECIPE: _recipe,
    Kind.TENSOR_TYPE_FILE: _tensor_types,
}


def _needs(rules: Sequence[ForeignRule]) -> str | None:
    """The engine that the types need, if only one has them."""
    from cook.formats.quant_types import by_name

    for flavour in (IK_LLAMA_CPP, LLAMA_CPP):
        if any(by_name(rule.type).engines == {flavour} for rule in rules):
            return flavour
    return None


def _named_apart(quants: Sequence[ForeignQuant]) -> tuple[ForeignQuant, ...]:
    """Several commands of one script are called after what they write."""
    if len(quants) < 2:
        return tuple(quants)
    named, used = [], Counter[str]()
    for quant in quants:
        name = _safe(Path(quant.output).stem) if quant.output else _safe(quant.type or quant.name)
        used[name.lower()] += 1
        number = used[name.lower()]
        named.append(replace(quant, name=name if number == 1 else f"{name[:60]}-{number}"))
    return tuple(named)


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
        name=_safe(wishes.name or output),
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
    return WrittenQuant(_safe(quant.name), _checked_base(base, quant), quant.mixture, rules, note)


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


def _stem(path: Path) -> str:
    """A name from the file's: ``make-quant-IQ1_KT.sh`` is IQ1_KT."""
    stem = re.sub(r"\.(sh|bash|recipe|txt)$", "", path.name)
    return _safe(re.sub(r"^(?:make[-_])?quant(?:ize)?[-_]", "", stem) or stem)


def _safe(text: str) -> str:
    """``text`` as a name: no characters that names lack, at most 64, cut where a part ends."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-") or "imported"
    if len(name) > 64:
        name = re.sub(r"[._+-][^._+-]*$", "", name[:65]) if re.search(r"[._+-]", name) else name
    return name[:64].rstrip("._+-") or "imported"
