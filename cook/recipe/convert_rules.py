"""Rules as the field writes them: ``pattern=type``, in the three formats that lists have.

- ``--custom-q`` of ik_llama.cpp: split at commas, then at the first ``=``; case-sensitive
  patterns and types (``parse_custom_quants`` of its ``examples/quantize/quantize.cpp``);
- ``--tensor-type`` and ``--tensor-type-file`` of llama.cpp: split at blanks (the file), then at
  the first ``=``; the pattern is made lower-case, types are taken in any case;
- ``.recipe`` of the GGUF-Tool-Suite: a rule a line, ``#`` begins a comment line.

In all of them the first rule that is found anywhere in a tensor's name decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cook.errors import InputError, Problem, RecipeError
from cook.formats.type_table import IK_LLAMA_CPP, LLAMA_CPP
from cook.recipe.convert_text import Source, Spanned
from cook.recipe.yaml_tree import Location

MAX_PROBLEMS = 50


@dataclass(frozen=True)
class ForeignRule:
    """``pattern`` as cook's own patterns read it, ``type`` in its exact spelling.

    ``comments`` are the comment lines before it, without ``#``; None between two of them is an
    empty line.
    """

    pattern: str
    type: str
    at: Location
    comments: tuple[str | None, ...] = ()


@dataclass
class Notes:
    """What was found while converting: errors (told all at once) and warnings."""

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

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys(p for p in self.problems if p.severity == "warning"))


def custom_q(source: Source, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of one ``--custom-q`` argument."""
    if "\n" in text.text:
        at = source.at(text.origin[text.text.index("\n")])
        hint = "join them with commas: ... | grep -v '^#' | sed -Ez 's:\\n+:,:g;s:,$::;s:^,::'"
        notes.error(at, "the lines of --custom-q are not joined: it splits at commas only", hint)
        return
    for item in text.split(","):
        yield from _rule(source, item, IK_LLAMA_CPP, notes)


def tensor_types(source: Source, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``--tensor-type-file``, or of one ``--tensor-type`` argument."""
    for item in text.words():
        yield from _rule(source, item, LLAMA_CPP, notes)


def rule_lines(source: Source, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``.recipe``: one a line."""
    for line in text.lines():
        item = line.strip()
        if item and not item.text.startswith("#"):
            yield from _rule(source, item, None, notes)


def custom_block(source: Source, text: Spanned, notes: Notes) -> Iterator[ForeignRule]:
    """The rules of a ``custom="..."`` block whose lines are not joined yet."""
    for line in text.lines():
        item = line.strip()
        if item and not item.text.startswith("#"):
            yield from custom_q(source, item.rstrip(","), notes)


def _rule(
    source: Source, item: Spanned, flavour: str | None, notes: Notes
) -> Iterator[ForeignRule]:
    at = source.at(item.start)
    pattern, equals, type_text = item.text.partition("=")
    if not equals or not pattern:
        shown = f"`{item.text[:60]}`" if item.text else "nothing between two commas"
        hint = "a rule is `pattern=type`"
        if item.text.startswith("#") and flavour == IK_LLAMA_CPP:
            hint = "the script's filter leaves this comment in; only lines that it drops are safe"
        elif item.text.startswith("#"):
            hint = "a --tensor-type-file has no comments; is this a .recipe (--from recipe)?"
        notes.error(at, f"not a rule: {shown}", hint)
        return
    type_at = source.at(item.origin[len(pattern) + 1]) if type_text else at
    type_name = _type(type_text, type_at, flavour, notes)
    if flavour == LLAMA_CPP and pattern != pattern.lower():
        message = f"llama.cpp makes patterns lower-case: `{pattern[:60]}` is imported so"
        notes.warn(at, message)
        pattern = pattern.lower()
    if not _sound(source, pattern, item, notes) or type_name is None:
        return
    first = not source.line(at.line)[: at.column - 1].strip()
    yield ForeignRule(pattern, type_name, at, comments_before(source, at.line) if first else ())


def _type(text: str, at: Location, flavour: str | None, notes: Notes) -> str | None:
    from cook.formats.quant_types import by_name

    try:
        found = by_name(text)
    except InputError as error:
        notes.error(at, error.message, error.hint)
        return None
    if flavour == IK_LLAMA_CPP and found.name != text:
        message = f"ik_llama.cpp knows no type `{text}`: its names are case-sensitive"
        notes.error(at, message, f"write {found.name}")
        return None
    if flavour is not None and flavour not in found.engines:
        (other,) = found.engines
        message = f"{flavour}, which reads this, has no type {found.name}; {other} has it"
        notes.error(at, message)
        return None
    if not found.quantizable:
        notes.error(at, f"{found.name} is a type of activations: no engine can write it")
        return None
    return found.name


def _sound(source: Source, pattern: str, item: Spanned, notes: Notes) -> bool:
    from pydantic_core import PydanticCustomError

    from cook.recipe.quant_spec import check_selector
    from cook.recipe.rules import FORCE_PATTERN

    try:
        check_selector(FORCE_PATTERN + pattern)
    except PydanticCustomError as error:
        context = error.context or {}
        offset = min(int(context["offset"]) - len(FORCE_PATTERN), len(item) - 1)
        notes.error(source.at(item.origin[max(offset, 0)]), context["text"], context["hint"])
        return False
    return True


def comments_before(source: Source, number: int) -> tuple[str | None, ...]:
    """The comment lines that stand right above line ``number``, empty lines among them."""
    found: list[str | None] = []
    for above in range(number - 1, 0, -1):
        line = source.line(above).strip()
        if line and (not line.startswith("#") or line.startswith("#!")):
            break
        found.append(_printable(line.lstrip("#")) if line else None)
    while found and found[-1] is None:
        found.pop()
    while found and found[0] is None:
        found.pop(0)
    return tuple(reversed(found))


def _printable(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text).rstrip()


def override(name: str, type_name: str, at: Location) -> ForeignRule:
    """A rule for exactly one tensor."""
    return ForeignRule(f"^{re.escape(name)}$".replace("\\_", "_"), type_name, at)


def distinct_comments(rules: Iterable[ForeignRule]) -> tuple[ForeignRule, ...]:
    """``rules`` with each comment at the first of the rules that it stands above."""
    from dataclasses import replace

    out: list[ForeignRule] = []
    for rule in rules:
        same_line = out and out[-1].at.line == rule.at.line
        out.append(replace(rule, comments=()) if same_line else rule)
    return tuple(out)
