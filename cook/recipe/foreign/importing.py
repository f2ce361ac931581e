"""Recipes from what the field has: quantization scripts, ``.recipe`` files, rule lists.

Scripts are read, never run (:mod:`cook.recipe.foreign.bash`). What comes out is YAML that has
been loaded, and whose rules give every tensor the type that the original gives it. With a
model's tensors, a group stands where the rules give all of its tensors one type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cook.documents.tree import resolve_scalar
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import FTYPES, IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.foreign import Format
from cook.recipe.foreign.quants import (
    PLACEHOLDER,
    ForeignQuant,
    ForeignRule,
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
from cook.recipe.groups import Group, group_of, mtp_layers_of
from cook.recipe.pattern import PatternTimeout, parse_pattern
from cook.recipe.rules import FORCE_PATTERN, Rule, Tensor, quantizable, timeout_message
from cook.recipe.schema import MAX_QUANTS, MAX_RULES

if TYPE_CHECKING:
    from cook.recipe.load import LoadedRecipe
    from cook.recipe.rules import ModelTensors

_BLOCK = r"^(enc\.|dec\.)?blk\.[0-9]+\."
# As cook.recipe.groups tells them, for the tensors that an engine quantizes at all (so without
# norms, biases and vectors). Each is true alone, so their order does not matter. Which layers
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
class Grouped:
    """``rules`` with a recipe's selectors as patterns; ``unused`` are those that decide no tensor;
    ``covered``: a rule decides every tensor."""

    rules: tuple[ForeignRule, ...]
    unused: tuple[ForeignRule, ...] = ()
    covered: bool = False


def selector_of(pattern: str) -> str:
    """The pattern as a recipe writes it: a text that is also a group's name is forced."""
    from pydantic_core import PydanticCustomError

    from cook.recipe.schema import check_selector

    try:
        plain = check_selector(pattern) not in frozenset(Group)
    except PydanticCustomError:
        plain = False
    return pattern if plain and not pattern.startswith(FORCE_PATTERN) else FORCE_PATTERN + pattern


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
            message = timeout_message(Rule(rule.pattern, rule.type))
            raise RecipeError([rule.at.problem(message)]) from None
        for name in hits:
            decided.setdefault(name, index)
    layers = mtp_layers_of(t.name for t in tensors)
    members: dict[Group, list[str]] = {}
    for name in names:
        members.setdefault(group_of(name, architecture, layers), []).append(name)
    groups_at: dict[int, list[Group]] = {}
    needed: set[int] = set()
    for group in Group:
        indices = {decided.get(name, -1) for name in members.get(group, ())}
        types = {rules[index].type if index >= 0 else None for index in indices}
        if len(types) == 1 and None not in types:
            groups_at.setdefault(min(indices), []).append(group)
        else:
            needed |= indices
    written: list[ForeignRule] = []
    for index, rule in enumerate(rules):
        selectors = [str(group) for group in groups_at.get(index, ())]
        selectors += [selector_of(rule.pattern)] if index in needed else []
        for number, selector in enumerate(selectors):
            comments = () if number else rule.comments
            written.append(replace(rule, pattern=selector, comments=comments))
    return Grouped(
        tuple(written),
        unused=tuple(r for i, r in enumerate(rules) if i not in set(decided.values())),
        covered=len(decided) == len(names),
    )


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
    header, quants = _header(format, quants)
    rules = [_rules(quant, tensors, notes) for quant in quants]
    quants = tuple(replace(quant, type=type or quant.type) for quant in quants)
    gguf = str(model) if model and model.suffix == ".gguf" else None
    name, text = _recipe_text(source, header, quants, rules, gguf, notes)
    notes.check()
    loaded = parse_recipe(text, to or Path(f"{name}.yaml"))
    return Imported(format, text, loaded, tuple(dict.fromkeys(notes.problems)))


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


_LOOKS_RUN = re.compile(
    r"llama-quantize|(?:/|^|llama[ \t])quantize\s|\s--quantize\s|^\s*\w+=[\"'$]", re.MULTILINE
)
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


def _rules(quant: ForeignQuant, tensors: ModelTensors | None, notes: Notes) -> Grouped:
    """The rules to write; those that the model has no tensors for are warnings."""
    if tensors is None or not quant.rules:
        rules = tuple(replace(rule, pattern=selector_of(rule.pattern)) for rule in quant.rules)
        found = Grouped(rules, covered=bool(rules) and quant.rules[-1].pattern in _ALL)
    else:
        flavour = quant.flavour or LLAMA_CPP
        found = grouped(quant.rules, tensors.tensors, tensors.architecture, flavour)
    for rule in found.unused:
        notes.warn(rule.at, f"`{rule.pattern[:60]}` decides no tensor of the model: left out")
    if len(found.rules) > MAX_RULES:
        message = f"{len(found.rules)} rules: a quant has at most {MAX_RULES}"
        notes.error(quant.at, message, "with --model, rules that say what a group says become one")
    return found


_ALL = (".*", ".+", ".")


def _recipe_text(
    source: ForeignText,
    header: Sequence[str | None],
    quants: Sequence[ForeignQuant],
    rules: Sequence[Grouped],
    model: str | None,
    notes: Notes,
) -> tuple[str, str]:
    """The recipe's name, and its YAML; ``model`` stands for the source that the file names."""
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
    _check_sources(first, model, imatrix, notes)
    name = first.model or first.name
    if first.output and len(quants) == 1 and not first.model:
        name = Path(first.output).stem
    name = safe_name(name)
    lines = [f"# Imported by `cook recipes import` from {file}.", *_comment(header)]
    lines += ["version: 1", f"name: {scalar(name)}"]
    lines += [f"engine: {engine}"] if engine else []
    lines += ["", "model:", f"  source: {scalar(model)}{note}"]
    if any(quant.allow_requantize for quant in quants):
        lines.append("  allow_requantize: true")
    if imatrix is not None:
        lines += ["", "imatrix:", f"  file: {scalar(imatrix)}"]
    lines += ["", "quants:"]
    for number, (quant, written) in enumerate(zip(quants, rules, strict=True)):
        lines += [""] if number else []
        lines += _quant_lines(quant, written, imatrix is not None, notes)
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


def _check_sources(quant: ForeignQuant, model: str, imatrix: str | None, notes: Notes) -> None:
    from cook.recipe.sources import parse_source

    for text in (model,) if imatrix is None else (model, imatrix):
        try:
            parse_source(text, Path())
        except ValueError as error:
            notes.error(quant.at, str(error))


def _header(
    format: Format, quants: tuple[ForeignQuant, ...]
) -> tuple[tuple[str | None, ...], tuple[ForeignQuant, ...]]:
    """A .recipe begins with comments about the whole: all but the last paragraph of them."""
    first = quants[0]
    comments = first.rules[0].comments if first.rules else ()
    if format is not Format.RECIPE or None not in comments:
        return (), quants
    last = len(comments) - 1 - comments[::-1].index(None)
    head = replace(first.rules[0], comments=comments[last + 1 :])
    header = tuple(c for c in comments[:last] if not (c or "").strip().startswith("Base type:"))
    return header, (replace(first, rules=(head, *first.rules[1:])), *quants[1:])


def _quant_lines(
    quant: ForeignQuant, written: Grouped, with_imatrix: bool, notes: Notes
) -> Iterator[str]:
    from cook.recipe.schema import base_type

    base, note = quant.type, ""
    if base is None:
        base = _common_base(quant.rules)
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
    if quant.mixture != ("pure" if written.rules else "engine") and not written.covered:
        engine = "    # what no rule hits gets the type that the engine thinks best"
        yield f"    mixture: {quant.mixture}{engine if quant.mixture == 'engine' else ''}"
    if written.rules:
        yield "    rules:"
    for number, rule in enumerate(written.rules):
        if number and rule.comments:
            yield ""
        yield from _comment(rule.comments, "      ")
        yield f"      - {scalar(rule.pattern)}: {rule.type}"


def _comment(lines: Sequence[str | None], indent: str = "") -> Iterator[str]:
    for line in lines:
        if line is None:
            yield ""
        else:
            yield f"{indent}#{line if line[:1] in ('', ' ', '!') else f' {line}'}"


_PLAIN_SCALAR = re.compile(
    r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(?:://[A-Za-z0-9_./@+~-]+)?", re.ASCII
)


def scalar(text: str) -> str:
    """``text`` as YAML that reads back as this very text."""
    if _PLAIN_SCALAR.fullmatch(text) and resolve_scalar(text) == text:
        return text
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _common_base(rules: Sequence[ForeignRule]) -> str:
    base_of: dict[str, str] = {}
    for ftype in FTYPES.values():
        if ftype.default not in ("f32", "f16", "bf16"):
            base_of.setdefault(ftype.default, ftype.name)
    counts = Counter(base_of[rule.type] for rule in rules if rule.type in base_of)
    return counts.most_common(1)[0][0] if counts else "Q8_0"
