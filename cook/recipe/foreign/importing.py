"""Recipes from what the field has: quantization scripts, ``.recipe`` files, rule lists.

Scripts are read, never run (:mod:`cook.recipe.foreign.bash`). What comes out is YAML that has
been loaded, and whose rules give every tensor the type that the original gives it. With a
model's tensors, a group stands where the rules give all of its tensors one type.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.documents.tree import Location, resolve_scalar
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import FTYPES, IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.foreign import Format
from cook.recipe.foreign.quants import (
    PLACEHOLDER,
    ForeignQuant,
    Notes,
    custom_q,
    name_of,
    only_flavour,
    read_rules,
    rule_lines,
    safe_name,
)
from cook.recipe.foreign.scripts import is_card, read_script
from cook.recipe.foreign.text import ForeignText, read_foreign
from cook.recipe.groups import Group
from cook.recipe.pattern import PatternTimeout
from cook.recipe.rules import FORCE_PATTERN, ModelTensors, Rule, timeout_message
from cook.recipe.schema import MAX_QUANTS, MAX_RULES, base_type
from cook.recipe.sources import parse_source

if TYPE_CHECKING:
    from cook.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Imported:
    """``text`` is the YAML, ``loaded`` the recipe that it is; ``warnings`` are about the file."""

    format: Format
    text: str
    loaded: LoadedRecipe
    warnings: tuple[Problem, ...]


def import_recipe(
    path: Path,
    *,
    format: Format | None = None,
    type: str | None = None,
    model: Path | None = None,
    to: Path | None = None,
) -> Imported:
    """The recipe that ``path`` says; ``to`` is where it will be kept (paths are relative to it).

    ``type`` is the base type where the file names none, ``model`` a GGUF or a list of its tensors.
    RecipeError with every fault at its file, line and column; InputError where the file as a
    whole cannot be used.
    """
    from cook.recipe.check import read_tensors
    from cook.recipe.load import parse_recipe

    source = read_foreign(path)
    format = format or format_of(path, source.text)
    notes = Notes()
    quants = read_quants(format, source, notes)
    notes.check()
    if not any(quant.rules or quant.type for quant in quants):
        hint = "cook reads scripts with llama-quantize or custom=..., .recipe files and rule lists"
        raise InputError(f"{path}: no rules and no llama-quantize command in it", hint=hint)
    if len(quants) > MAX_QUANTS:
        raise InputError(f"{path}: {len(quants)} quants; a recipe has at most {MAX_QUANTS}")
    tensors = read_tensors(model) if model else None
    gguf = None
    if model is not None and model.suffix == ".gguf":  # where the recipe will find it
        gguf = os.path.relpath(model, to.parent) if to is not None else str(model.absolute())
    header: Sequence[str] = ()
    if format is Format.RECIPE and quants[0].rules:
        # The comments about the whole: all but the last paragraph above the first rule.
        above = _comments(source, quants[0].rules[0].at)
        header = above[: len(above) - 1 - above[::-1].index("")] if "" in above else []
    quants = tuple(replace(quant, type=type or quant.type) for quant in quants)
    name, text = _recipe_text(source, header, quants, tensors, gguf, notes)
    notes.check()
    loaded = parse_recipe(text, to or Path(f"{name}.yaml"))
    return Imported(format, text, loaded, tuple(dict.fromkeys(notes.problems)))


_LOOKS_RUN = re.compile(
    r"llama-quantize|(?:/|^|llama[ \t])quantize\s|\s--quantize\s|^\s*\w+=[\"'$]", re.MULTILINE
)


def format_of(path: Path, text: str) -> Format:
    """What the file is, by its name, else by what it looks like."""
    if path.suffix == ".recipe":
        return Format.RECIPE
    if path.suffix in (".sh", ".bash", ".bat", ".cmd", ".ps1") or text.startswith("#!"):
        return Format.SCRIPT
    if is_card(ForeignText(str(path), text)) or _LOOKS_RUN.search(text):
        return Format.SCRIPT
    if re.search(r"^\s*#", text, re.MULTILINE):
        return Format.RECIPE
    words = text.split()
    if len(words) == 1 and re.search(r"=[A-Za-z0-9_]+,", words[0]):
        return Format.CUSTOM_Q
    return Format.TENSOR_TYPE_FILE


_HUB = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)", re.ASCII)
_MODEL = re.compile(r"^#+\s*Model name:\s*(\S{1,64})\s*$", re.MULTILINE)
_BASE = re.compile(r"^#+\s*Base type:\s*(\w{1,32})\s*$", re.MULTILINE)


def read_quants(format: Format, source: ForeignText, notes: Notes) -> tuple[ForeignQuant, ...]:
    """The quants of ``source``, faults in ``notes``; none where it holds no rules at all."""
    path, at, text = Path(source.file), source.at(0), source.whole
    name = name_of(path)
    match format:
        case Format.SCRIPT:
            return read_script(source, name, notes)
        case Format.CUSTOM_Q:
            rules = custom_q(source, text.strip(), notes)
            return (ForeignQuant(name, rules, at, flavour=IK_LLAMA_CPP),)
        case Format.TENSOR_TYPE_FILE:
            rules = read_rules(source, text.words(), LLAMA_CPP, notes)
            return (ForeignQuant(name, rules, at, flavour=LLAMA_CPP),)
    rules = read_rules(source, rule_lines(text), None, notes)
    base, hub, model = (p.search(source.text) for p in (_BASE, _HUB, _MODEL))
    return (
        ForeignQuant(
            # The suite's files are called MODEL.AUTHOR-SIZE...: the name need not repeat it.
            safe_name(path.stem.removeprefix(f"{model[1]}.")) if model else name,
            rules,
            at,
            base[1] if base else None,
            only_flavour(rules),
            source=f"hf://{hub[1]}" if hub else None,
            model=model[1] if model else None,
        ),
    )


def group_rules(
    rules: Sequence[Rule], model: ModelTensors, flavour: str
) -> tuple[list[Rule], list[Rule], bool]:
    """Rules that give every tensor the same type, by groups where that can be; those of ``rules``
    that decide none; and whether every tensor has one that does.

    A group stands where the first rule that decides any of its tensors stood. Every rule before
    that one decides none of them, so none is taken away from it or given to it.
    """
    decided: dict[str, int] = {}
    kept = model.kept(flavour)
    for index, rule in enumerate(rules):
        try:
            hits = model.hits(rule)
        except PatternTimeout:
            assert rule.at is not None, "it was read"
            raise RecipeError([rule.at.problem(timeout_message(rule))]) from None
        for name in hits - kept:
            decided.setdefault(name, index)
    groups_at: dict[int, list[Group]] = {}
    needed: set[int | None] = set()
    for group in Group:
        indices = {decided.get(name) for name in model.hits(Rule(group, "")) - kept}
        first = min((index for index in indices if index is not None), default=None)
        types = {None if index is None else rules[index].type for index in indices}
        if first is not None and len(types) == 1:
            groups_at.setdefault(first, []).append(group)
        else:
            needed |= indices
    written: list[Rule] = []
    for index, rule in enumerate(rules):
        written += [replace(rule, selector=str(group)) for group in groups_at.get(index, ())]
        written += [rule] if index in needed else []
    unused = [rule for index, rule in enumerate(rules) if index not in {*decided.values()}]
    return written, unused, len(decided) == len({*model.names} - kept)


def _recipe_text(
    source: ForeignText,
    header: Sequence[str],
    quants: Sequence[ForeignQuant],
    tensors: ModelTensors | None,
    model: str | None,
    notes: Notes,
) -> tuple[str, str]:
    """The recipe's name, and its YAML; ``model`` stands for the source that the file names, whose
    comments about the whole are the ``header``."""
    first, file = quants[0], Path(source.file).name
    for other in quants[1:]:
        if other.source != first.source:
            notes.error(other.at, "a recipe has one source; an earlier command has another")
    engine, imatrix = _one_of("flavour", quants, notes), _one_of("imatrix", quants, notes)
    model, note = model or first.source, ""
    if model is None:
        model = PLACEHOLDER
        note = f"    # {file} does not name it: put your unquantized GGUF here"
        notes.warn(source.at(0), "the source model is not named here", "set `model: source:`")
    for text in (model,) if imatrix is None else (model, imatrix):
        try:
            parse_source(text, Path())
        except ValueError as error:
            notes.error(first.at, str(error))
    name = first.model or first.name
    if first.output and len(quants) == 1 and not first.model:
        name = Path(first.output).stem
    name = safe_name(name)
    lines = [f"# Imported by `cook recipes import` from {file}."]
    lines += [line for line in header if not line.strip("# ").startswith("Base type:")]
    lines += ["version: 1", f"name: {scalar(name)}"]
    lines += [f"engine: {engine}"] if engine else []
    lines += ["", "model:", f"  source: {scalar(model)}{note}"]
    lines += ["  allow_requantize: true"] if any(q.allow_requantize for q in quants) else []
    lines += ["", "imatrix:", f"  file: {scalar(imatrix)}"] if imatrix is not None else []
    lines += ["", "quants:"]
    for quant in quants:
        lines += [] if quant is first else [""]
        rules, covered = _rules(quant, tensors, notes)
        lines += _settings(quant, bool(rules), covered, imatrix is not None, notes)
        lines += _rule_lines(source, header, rules)
    return name, "\n".join(line.rstrip() for line in lines) + "\n"


def _one_of(word: str, quants: Sequence[ForeignQuant], notes: Notes) -> str | None:
    """What the quants that say it have in common."""
    first: str | None = None
    for quant in quants:
        value = getattr(quant, word)
        if value is not None and first not in (None, value):
            message = f"a recipe has one {word}: here {value}, before {first}"
            notes.error(quant.at, message, "make a script of each, and import both")
        first = first or value
    return first


_ALL = (".*", ".+", ".")


def _rules(
    quant: ForeignQuant, model: ModelTensors | None, notes: Notes
) -> tuple[Sequence[Rule], bool]:
    """The rules to write, and whether they decide every tensor; those that the model has no
    tensors for are warnings."""
    rules, unused, covered = list(quant.rules), list[Rule](), False
    if model is not None and rules:
        rules, unused, covered = group_rules(rules, model, quant.flavour or LLAMA_CPP)
    elif rules:
        covered = rules[-1].selector in _ALL
    for rule in unused:
        pattern = rule.selector.removeprefix(FORCE_PATTERN)[:60]
        notes.warn(rule.at or quant.at, f"`{pattern}` decides no tensor of the model: left out")
    if len(rules) > MAX_RULES:
        message = f"{len(rules)} rules: a quant has at most {MAX_RULES}"
        notes.error(quant.at, message, "with --model, rules that say what a group says become one")
    return rules, covered


def _settings(
    quant: ForeignQuant, rules: bool, covered: bool, with_imatrix: bool, notes: Notes
) -> Iterator[str]:
    """The lines of the quant above those of its ``rules``, if there are any."""
    base, note = quant.type, ""
    if base is None:
        quantized = (f for f in FTYPES.values() if f.default not in ("f32", "f16", "bf16"))
        base_of = {ftype.default: ftype.name for ftype in reversed([*quantized])}
        counts = Counter(base_of[rule.type] for rule in quant.rules if rule.type in base_of)
        base = counts.most_common(1)[0][0] if counts else "Q8_0"
        note = "    # not said in the file: the type of the most rules"
        notes.warn(quant.at, f"no base type is named: {base}, as most rules say", "--type TYPE")
    yield f"  - name: {scalar(safe_name(quant.name))}"
    try:
        base = base_type(base)
    except InputError as error:
        raise RecipeError([quant.at.problem(error.message, hint=error.hint)]) from None
    yield f"    type: {base}{note}"
    if with_imatrix and quant.imatrix is None:
        yield "    imatrix: false"
    # With rules and no word of it, cook gives the base type to all that no rule hits.
    if quant.mixture != ("pure" if rules else "engine") and not covered:
        engine = "    # what no rule hits gets the type that the engine thinks best"
        yield f"    mixture: {quant.mixture}{engine if quant.mixture == 'engine' else ''}"


def _rule_lines(source: ForeignText, header: Sequence[str], rules: Sequence[Rule]) -> Iterator[str]:
    """The rules, each behind the comments that stand above it in the file."""
    if rules:
        yield "    rules:"
    before: Location | None = None
    for rule in rules:
        comments = _comments(source, rule.at) if rule.at and rule.at != before else []
        if header and comments[: len(header)] == header:
            comments = comments[len(header) + 1 :]
        if before and comments:
            yield ""
        yield from (f"      {comment}" for comment in comments)
        yield f"      - {scalar(rule.selector)}: {rule.type}"
        before = rule.at


def _comments(source: ForeignText, at: Location | None) -> list[str]:
    """The comments right above a rule that begins its line, and the empty lines between them."""
    found: list[str] = []
    if at is None or at.file != source.file or source.line(at.line)[: at.column - 1].strip():
        return found
    for number in range(at.line - 1, 0, -1):
        line = source.line(number).strip()
        if line and (not line.startswith("#") or line.startswith("#!")):
            break
        comment = _UNPRINTABLE.sub(" ", line.lstrip("#")).rstrip()
        space = "" if comment[:1] in ("", " ", "!") else " "
        found.insert(0, f"#{space}{comment}" if line else "")
    return "\n".join(found).strip("\n").split("\n") if any(found) else []


_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_SCALAR = re.compile(
    r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(?:://[A-Za-z0-9_./@+~-]+)?", re.ASCII
)


def scalar(text: str) -> str:
    """``text`` as YAML that reads back as this very text."""
    if _PLAIN_SCALAR.fullmatch(text) and resolve_scalar(text) == text:
        return text
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
