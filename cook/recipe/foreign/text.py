"""Text that knows, character by character, where in a file it was read.

What a script hands to an engine is put together from pieces of it: lines are dropped and
joined, quotes removed. A fault in the result still has its line and column.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from cook.documents.tree import Location
from cook.errors import InputError, RecipeError
from cook.formats.cursor import read_text

MAX_BYTES = 1 << 20
"""Of a file, and characters of one expanded text: variables may contain one another."""


@dataclass(frozen=True)
class ForeignText:
    """A file that is converted, and the places in it."""

    file: str
    text: str

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def at(self, offset: int) -> Location:
        """The place of the character at ``offset``."""
        line = bisect_right(self._starts, offset)
        return Location(self.file, line, offset - self._starts[line - 1] + 1)

    def error(self, offset: int, message: str, hint: str | None = None) -> RecipeError:
        """The one fault, at the character at ``offset``."""
        return RecipeError([self.at(offset).problem(message, hint=hint)])

    def line(self, number: int) -> str:
        """The text of line ``number`` (from 1), without its end."""
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end]

    @property
    def whole(self) -> Spanned:
        return Spanned(self.text, tuple(range(len(self.text))))


def read_foreign(path: Path) -> ForeignText:
    """The file at ``path``; InputError for one that is absent, larger than 1 MiB or not text."""
    text = read_text(path, MAX_BYTES)
    if "\0" in text:
        raise InputError(f"{path} is not text")
    return ForeignText(str(path), text.replace("\r\n", "\n"))


@dataclass(frozen=True)
class Spanned:
    """``text``, and for each character its offset in the source.

    ``unknown`` says why only running the script would tell what stands before ``text`` (which is
    ``/llama-quantize`` of ``$1/llama-quantize``), ``place`` where that starts; ``optional``: it
    may well be no word at all.
    """

    text: str = ""
    origin: tuple[int, ...] = ()
    unknown: str = ""
    place: int = 0
    optional: bool = False

    def __len__(self) -> int:
        return len(self.text)

    def __bool__(self) -> bool:
        """Whether it is more than nothing."""
        return bool(self.text or self.unknown)

    def __getitem__(self, key: slice) -> Spanned:
        return Spanned(self.text[key], self.origin[key])

    @property
    def start(self) -> int:
        """Where it begins in the source; 0 for empty text."""
        return self.place if self.unknown else self.origin[0] if self.origin else 0

    @property
    def known(self) -> str:
        """The text where all of it is known, else nothing."""
        return "" if self.unknown else self.text

    def rstrip(self, chars: str) -> Spanned:
        return self[: len(self.text.rstrip(chars))]

    def strip(self) -> Spanned:
        left = len(self.text) - len(self.text.lstrip())
        return self[left : len(self.text.rstrip())]

    def split(self, separator: str) -> Iterator[Spanned]:
        """The parts between ``separator``s; an empty part has the place of its separator."""
        start = 0
        while (end := self.text.find(separator, start)) >= 0:
            yield self[start:end] if end > start else Spanned("", self.origin[end : end + 1])
            start = end + 1
        yield self[start:] if start < len(self) else Spanned("", self.origin[-1:])

    def parts(self, pattern: str) -> Iterator[Spanned]:
        """What of it matches the pattern, one after another."""
        return (self[match.start() : match.end()] for match in re.finditer(pattern, self.text))

    def words(self) -> Iterator[Spanned]:
        """The parts between blanks."""
        return self.parts(r"\S+")

    def lines(self) -> Iterator[Spanned]:
        """Lines with their ends."""
        return self.parts(r"[^\n]*\n|[^\n]+$")

    def replaced(self, pattern: str, by: str, count: int = 0) -> Spanned:
        """Every match (or the first ``count``) replaced by the plain text ``by``."""
        parts, end = [], 0
        for number, match in enumerate(re.finditer(pattern, self.text)):
            if count and number >= count:
                break
            place = self.origin[match.start() : match.start() + 1] or self.origin[-1:]
            parts += [self[end : match.start()], Spanned(by, place * len(by))]
            end = match.end()
        return joined([*parts, self[end:]])


def joined(parts: Iterable[Spanned]) -> Spanned:
    """The parts as one text, of which the first unknown one says why it is; InputError beyond the
    size limit."""
    pieces = list(parts)
    if len(pieces) == 1:
        return pieces[0]
    if sum(map(len, pieces)) > MAX_BYTES:
        raise InputError("a text of the script grows beyond 1 MiB when it is expanded")
    unknown = [number for number, piece in enumerate(pieces) if piece.unknown]
    first = pieces[unknown[0]] if unknown else Spanned()
    known = pieces[unknown[-1] if unknown else 0 :]
    origin = tuple(chain.from_iterable(piece.origin for piece in known))
    return Spanned("".join(p.text for p in known), origin, first.unknown, first.place)
