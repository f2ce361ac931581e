"""Quants as the field's files say them, and their rules: ``pattern=type``, in one of three formats.

- ``--custom-q`` of ik_llama.cpp: split at commas, then at the first ``=``; case-sensitive
  patterns and types (``parse_custom_quants`` of its ``examples/quantize/quantize.cpp``);
- ``--tensor-type`` and ``--tensor-type-file`` of llama.cpp: split at blanks (the file), then at
  the first ``=``; the pattern is made lower-case, types are taken in any case;
- ``.recipe`` of the GGUF-Tool-Suite: a rule a line, ``#`` begins a comment line.

In all of them the first rule that is found anywhere in a tensor's name decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import PydanticCustomError

from cook.documents.tree import Location
from cook.errors import InputError, Problem, RecipeError
from cook.formats.quant_types import IK_LLAMA_CPP, LLAMA_CPP, by_name
from cook.recipe.foreign.text import ForeignText, Spanned
from cook.recipe.groups import SELECTORS
from cook.recipe.rules import FORCE_PATTERN, Rule

MAX_PROBLEMS = 50
PLACEHOLDER = "MODEL-BF16.gguf"
"""What a model that is not named is called."""


@dataclass(frozen=True)
class ForeignQuant:
    """A quant as it was found; None is what was not said.

    ``flavour`` is the engine whose command it is. ``mixture`` is what decides tensors that no
    rule hits; ``model`` is what the file calls the model.
    """

    name: str
    rules: tuple[Rule, ...]
    at: Location
    type: str | None = None
    flavour: str | None = None
    mixture: str = "engine"
    imatrix: str | None = None
    source: str | None = None
    output: str | None = None
    model: str | None = None
    allow_requantize: bool = False


@dataclass
class Notes:
    """What was found while converting: errors (raised all at once) and warnings."""

    problems: list[Problem] = field(default_factory=list)

    def error(self, at: Location, message: str, hint: str | None = None) -> None:
        self.problems.append(at.problem(message, hint=hint))
        if len(self.problems) >= MAX_PROBLEMS:
            self.check()

    def warn(self, at: Location, message: str, hint: str | None = None) -> None:
        self.problems.append(at.problem(message, hint=hint, severity="warning"))

    def check(self) -> None:
        """RecipeError if there was an error."""
        if any(p.severity == "error" for p in self.problems):
            raise RecipeError(self.problems)


def custom_q(source: ForeignText, text: Spanned, notes: Notes) -> tuple[Rule, ...]:
    """The rules of one ``--custom-q`` argument."""
    if "\n" in text.text:
        at = source.at(text.origin[text.text.index("\n")])
        hint = "join them with commas: ... | grep -v '^#' | sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'"
        notes.error(at, "the lines of --custom-q are not joined: it splits at commas only", hint)
        return ()
    return read_rules(source, text.split(","), IK_LLAMA_CPP, notes)


def rule_lines(text: Spanned) -> Iterator[Spanned]:
    """The lines that are neither empty nor comments."""
    return (item for line in text.lines() if (item := line.strip()) and item.text[0] != "#")


def read_rules(
    source: ForeignText, items: Iterable[Spanned], flavour: str | None, notes: Notes
) -> tuple[Rule, ...]:
    """The rules that ``items`` are; ``flavour`` is the engine that reads them, if it is one."""
    return tuple(rule for item in items if (rule := _rule(source, item, flavour, notes)))


def _rule(source: ForeignText, item: Spanned, flavour: str | None, notes: Notes) -> Rule | None:
    from cook.recipe.schema import check_selector

    at = source.at(item.start)
    pattern, equals, type_text = item.text.partition("=")
    if not equals or not pattern:
        hint = "a rule is `pattern=type`"
        if item.text.startswith("#") and flavour == IK_LLAMA_CPP:
            hint = "the script's filter leaves this comment in; only lines that it drops are safe"
        elif item.text.startswith("#"):
            hint = "a --tensor-type-file has no comments; is this a .recipe (--from recipe)?"
        shown = f"`{item.text[:60]}`" if item else "nothing between two commas"
        notes.error(at, f"not a rule: {shown}", hint)
        return None
    type_name = None
    try:
        type_name = _type(type_text, flavour)
    except InputError as error:
        type_at = source.at(item.origin[len(pattern) + 1]) if type_text else at
        notes.error(type_at, error.message, error.hint)
    if flavour == LLAMA_CPP and pattern != pattern.lower():
        notes.warn(at, f"llama.cpp makes patterns lower-case: `{pattern[:60]}` is imported so")
        pattern = pattern.lower()
    try:
        check_selector(FORCE_PATTERN + pattern)
    except PydanticCustomError as error:
        fault = error.context or {}
        offset = min(int(fault["offset"]) - len(FORCE_PATTERN), len(item) - 1)
        notes.error(source.at(item.origin[max(offset, 0)]), fault["text"], fault["hint"])
        return None
    return Rule(selector_of(pattern), type_name, at=at) if type_name else None


def selector_of(pattern: str) -> str:
    """The pattern as a recipe writes it: a text that is also a group's name is forced."""
    from cook.recipe.schema import check_selector

    try:
        plain = check_selector(pattern) not in SELECTORS
    except PydanticCustomError:
        plain = False
    return pattern if plain and not pattern.startswith(FORCE_PATTERN) else FORCE_PATTERN + pattern


def _type(text: str, flavour: str | None) -> str:
    """The type in its exact spelling; InputError where ``flavour`` does not take it."""
    found = by_name(text)
    if flavour == IK_LLAMA_CPP and found.name != text:
        message = f"ik_llama.cpp knows no type `{text}`: its names are case-sensitive"
        raise InputError(message, hint=f"write {found.name}")
    if flavour is not None and flavour not in found.engines:
        (other,) = found.engines
        message = f"{flavour}, which reads this, has no type {found.name}; {other} has it"
        raise InputError(message)
    if not found.quantizable:
        raise InputError(f"{found.name} is a type of activations: no engine can write it")
    return found.name


def only_flavour(rules: Sequence[Rule]) -> str | None:
    """The engine that the types need, if only one has them."""
    for flavour in (IK_LLAMA_CPP, LLAMA_CPP):
        if any(by_name(rule.type).engines == {flavour} for rule in rules):
            return flavour
    return None


def name_of(path: Path) -> str:
    """A name from the file's: ``make-quant-IQ1_KT.sh`` is IQ1_KT."""
    stem = re.sub(r"\.(sh|bash|recipe|txt)$", "", path.name)
    return safe_name(re.sub(r"^(?:make[-_])?quant(?:ize)?[-_]", "", stem) or stem)


def safe_name(text: str) -> str:
    """``text`` as a name: no characters that names lack, at most 64, cut where a part ends."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text).lstrip("._+-") or "imported"
    if len(name) > 64:
        name = re.sub(r"[._+-][^._+-]*$", "", name[:65]) if re.search(r"[._+-]", name) else name
    return name[:64].rstrip("._+-") or "imported"
