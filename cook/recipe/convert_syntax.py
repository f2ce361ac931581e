"""A script as a tree: words with their quoting, assignments, commands, pipelines."""

from __future__ import annotations

from dataclasses import dataclass

from cook.recipe.convert_text import Spanned


@dataclass(frozen=True)
class Unknown:
    """Text that only running the script would tell, why, and where (an offset)."""

    reason: str
    offset: int


@dataclass(frozen=True)
class Literal:
    text: Spanned
    quoted: bool


@dataclass(frozen=True)
class Variable:
    name: str
    offset: int
    quoted: bool


@dataclass(frozen=True)
class Substitution:
    """``$(...)``."""

    script: Script
    offset: int
    quoted: bool


Part = Literal | Variable | Substitution | Unknown


@dataclass(frozen=True)
class Word:
    parts: tuple[Part, ...]
    offset: int


@dataclass(frozen=True)
class Assignment:
    """``name=value``, or ``name+=value``; ``value`` may be unknown as a whole (an array)."""

    name: str
    appends: bool
    value: Word
    offset: int


@dataclass(frozen=True)
class Command:
    """One simple command; ``inside`` is the word of the construct around it (``if``), if any."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    stdin: Word | None
    inside: str | None


Pipeline = tuple[Command, ...]
Script = tuple[Pipeline, ...]
