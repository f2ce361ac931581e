"""A recipe's YAML from quants that were found elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cook.recipe.convert_groups import Grouped
from cook.recipe.yaml_tree import resolve_scalar

_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(?:://[A-Za-z0-9_./@+~-]+)?", re.ASCII)
_WIDTH = 100


@dataclass(frozen=True)
class WrittenQuant:
    name: str
    type: str
    mixture: str
    rules: Grouped
    type_note: str | None = None


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
        lines += _quant(quant)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _quant(quant: WrittenQuant) -> list[str]:
    lines = [
        f"  - name: {scalar(quant.name)}",
        _noted(f"    type: {quant.type}", quant.type_note),
    ]
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
