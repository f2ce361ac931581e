"""Tensor-name patterns: the ECMAScript subset that both engines' ``std::regex`` reads.

A pattern is parsed here, so that a fault has its column, and matched with the ``regex``
package under a time limit, so that a catastrophic one is an error and not a hang. Semantics
are ECMAScript's as the engines use it: unanchored search, case-sensitive, ASCII classes,
``$`` the end only. Engines never see these patterns: cook sends them explicit tensor names
(:mod:`cook.recipe.engine_rules`), so ``{m,n}`` and upper case are safe on both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_LENGTH = 1024
MAX_DEPTH = 32
MAX_REPEAT = 1000
"""For one count, and for the product of counts inside one another: engines write them out."""
TIMEOUT_S = 0.5
"""For one search in one tensor name; a sane pattern needs microseconds."""
TOTAL_TIMEOUT_S = 1.0
"""For all names of a model, processor time."""

_CLASSES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "s": "[ \\t\\n\\v\\f\\r]",
    "S": "[^ \\t\\n\\v\\f\\r]",
}
_CONTROLS = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f", "v": "\\v"}
_PUNCTUATION = set("^$\\.*+?()[]{}|/-,=!\"#%&':;<>@`~ _")


# Patterns that hung once, so that a recipe with one is told in one time limit and not in many.
_HANGING: set[str] = set()


class PatternError(ValueError):
    """Why a pattern is refused; ``offset`` counts characters from its start."""

    def __init__(self, message: str, offset: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.hint = hint


class PatternTimeout(Exception):
    """Matching took longer than the limit: the pattern backtracks catastrophically."""


@dataclass(frozen=True)
class Pattern:
    """A valid pattern. ``source`` is as the user wrote it."""

    source: str

    def search(self, name: str) -> bool:
        """Whether the pattern is found anywhere in ``name``; PatternTimeout if it hangs."""
        if self.source in _HANGING:
            raise PatternTimeout(f"matching {self.source!r}")
        try:
            return _compiled(self.source).search(name, timeout=TIMEOUT_S) is not None
        except TimeoutError:
            _HANGING.add(self.source)
            raise PatternTimeout(f"matching {self.source!r} against {name!r}") from None

    def search_all(self, names: Iterable[str]) -> frozenset[str]:
        """Those of ``names`` in which the pattern is found; PatternTimeout if it hangs."""
        deadline = time.process_time() + TOTAL_TIMEOUT_S
        found = set()
        for name in names:
            if self.search(name):
                found.add(name)
            if time.process_time() > deadline:
                _HANGING.add(self.source)
                raise PatternTimeout(f"matching {self.source!r} against all names")
        return frozenset(found)


def parse_pattern(source: str) -> Pattern:
    """Check ``source``; PatternError names the first character that is not allowed."""
    _translate(source)
    return Pattern(source)


@lru_cache(maxsize=512)
def _compiled(source: str) -> Any:
    import regex

    return regex.compile(_translate(source), regex.VERSION0 | regex.ASCII)


@lru_cache(maxsize=512)
def _translate(source: str) -> str:
    if not source:
        raise PatternError("an empty pattern matches every tensor", 0, "write `re:.*`")
    if len(source) > MAX_LENGTH:
        raise PatternError(f"longer than {MAX_LENGTH} characters", MAX_LENGTH)
    parser = _Parser(source)
    out = parser.alternation(0)
    if parser.at < len(source):
        raise PatternError("`)` without `(`", parser.at, "escape it: `\\)`")
    return out


class _Parser:
    """Recursive descent; each method returns the equivalent pattern for ``regex``."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self._inner_repeat = 1  # the largest count inside the atom just read

    def _peek(self, count: int = 1) -> str:
        return self.source[self.at : self.at + count]

    def alternation(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise PatternError(f"groups nested deeper than {MAX_DEPTH}", self.at)
        branches = [self._sequence(depth)]
        largest = self._inner_repeat
        while self._peek() == "|":
            self.at += 1
            branches.append(self._sequence(depth))
            largest = max(largest, self._inner_repeat)
        self._inner_repeat = largest
        return "|".join(branches)

    def _sequence(self, depth: int) -> str:
        out = []
        largest = 1
        while self._peek() not in ("", "|", ")"):
            self._inner_repeat = 1
            atom, quantifiable = self._atom(depth)
            out.append(atom + self._quantifier(quantifiable))
            largest = max(largest, self._inner_repeat)
        self._inner_repeat = largest
        return "".join(out)

    def _atom(self, depth: int) -> tuple[str, bool]:
        char, start = self._peek(), self.at
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._char_class(), True
        if char == "\\":
            return self._escape()
        if char in "*+?":
            raise PatternError(f"nothing for `{char}` to repeat", start, f"escape it: `\\{char}`")
        if char in "{}]":
            raise PatternError(f"a bare `{char}`", start, f"escape it: `\\{char}`")
        self.at += 1
        if char == "^":
            return "\\A", False
        if char == "$":
            return "\\Z", False
        if char == ".":
            return "[^\\n\\r]", True
        return _literal(char), True

    def _group(self, depth: int) -> tuple[str, bool]:
        start = self.at
        self.at += 1
        opening = "(?:"
        if self._peek() == "?":
            kind = self._peek(2)
            if kind == "?:":
                self.at += 2
            elif kind == "?!":
                self.at += 2
                opening = "(?!"
            else:
                raise PatternError(*_refused_group(self._peek(3), start))
        inner = self.alternation(depth + 1)
        if self._peek() != ")":
            raise PatternError("`(` without `)`", start, "close it, or escape it: `\\(`")
        self.at += 1
        return f"{opening}{inner})", opening != "(?!"

    def _quantifier(self, quantifiable: bool) -> str:
        char, at = self._peek(), self.at
        if char not in ("*", "+", "?", "{"):
            return ""
        if not quantifiable:
            raise PatternError("an assertion cannot be repeated", at)
        text = self._counts() if char == "{" else char
        if char != "{":
            self.at += 1
        if self._peek() == "?":
            self.at += 1
            text += "?"
        follow = self._peek()
        if follow == "+" and char in "*+?{":
            raise PatternError("possessive quantifiers are not ECMAScript", self.at)
        if follow in ("*", "+", "?", "{") and follow:
            raise PatternError("a quantifier after a quantifier", self.at, "group it: `(?:...)`")
        return text

    def _counts(self) -> str:
        start = self.at
        end = self.source.find("}", start)
        body = self.source[start + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        numbers = [n for n in (low, high) if n]
        if not low or not all(n.isascii() and n.isdigit() for n in numbers):
            hint = "write {n}, {n,} or {n,m}; escape a literal brace: `\\{`"
            raise PatternError("not a repeat count", start, hint)
        if any(len(n) > 4 or int(n) > MAX_REPEAT for n in numbers):
            raise PatternError(f"a repeat count above {MAX_REPEAT}", start)
        if high and int(low) > int(high):
            raise PatternError("a repeat count whose lower bound is the larger", start)
        self._inner_repeat *= max(1, *(int(n) for n in numbers))
        if self._inner_repeat > MAX_REPEAT:
            raise PatternError(f"repeat counts inside one another above {MAX_REPEAT}", start)
        self.at = end + 1
        return f"{{{int(low)}{comma}{int(high) if high else ''}}}"

    def _escape(self) -> tuple[str, bool]:
        start = self.at
        char = self._peek(2)[1:]
        self.at += 2
        if char in _CLASSES:
            return _CLASSES[char], True
        if char in ("b", "B"):
            return f"\\{char}", False
        if char in _CONTROLS:
            return _CONTROLS[char], True
        if char and char in _PUNCTUATION:
            return _literal(char), True
        raise PatternError(*_refused_escape(char, start))

    def _char_class(self) -> str:
        start = self.at
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        parts: list[str] = []
        while self._peek() != "]":
            if not self._peek():
                raise PatternError("`[` without `]`", start, "close it, or escape it: `\\[`")
            parts.append(self._class_item())
        self.at += 1
        if not parts:
            raise PatternError("an empty character class", start)
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _class_item(self) -> str:
        start = self.at
        low = self._class_char()
        if self._peek() != "-" or self._peek(2)[1:] in ("]", ""):
            return _class_literal(low) if len(low) == 1 else low
        self.at += 1
        high = self._class_char()
        if len(low) != 1 or len(high) != 1:
            raise PatternError("a range needs single characters at both ends", start)
        if low > high:
            raise PatternError(f"the range {low}-{high} is out of order", start)
        return f"{_class_literal(low)}-{_class_literal(high)}"

    def _class_char(self) -> str:
        """One literal character, or the inside of an escaped class (longer than one)."""
        start, char = self.at, self._peek()
        if char == "[" and self._peek(2)[1:] in (":", ".", "="):
            raise PatternError("POSIX classes are not ECMAScript", start, "write the range: `0-9`")
        self.at += 1
        if char != "\\":
            return char
        escaped = self._peek()
        self.at += 1
        if escaped in ("d", "w", "s"):
            return _CLASSES[escaped][1:-1]
        if escaped in _CONTROLS:
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}[escaped]
        if escaped and escaped in _PUNCTUATION:
            return escaped
        raise PatternError(*_refused_escape(escaped, start))


def _literal(char: str) -> str:
    return char if char.isalnum() or char == "_" or ord(char) > 127 else f"\\x{ord(char):02x}"


def _class_literal(char: str) -> str:
    return _literal(char)


def _refused_group(opening: str, at: int) -> tuple[str, int, str | None]:
    if opening.startswith("?="):
        return "lookahead `(?=` cannot be written for llama.cpp, which splits at `=`", at, None
    if opening in ("?<=", "?<!"):
        return "lookbehind is not ECMAScript", at, None
    if opening.startswith(("?P", "?<", "?'")):
        return "named groups are not in the subset", at, "use `(?:...)`"
    if opening.startswith("?>"):
        return "atomic groups are not ECMAScript", at, None
    return "inline flags are not ECMAScript", at, "matching is case-sensitive"


def _refused_escape(char: str, at: int) -> tuple[str, int, str | None]:
    if not char:
        return "a lone `\\` at the end", at, "escape it: `\\\\`"
    if char.isdigit():
        return f"back-references (`\\{char}`) are not in the subset", at, None
    if char in "pP":
        return "Unicode properties are not ECMAScript", at, None
    if char in "xuc":
        return f"`\\{char}` escapes are not in the subset", at, "write the character itself"
    if char in "AZzGQEKR":
        return f"`\\{char}` is not ECMAScript", at, "use `^` and `$`"
    return f"unknown escape `\\{char}`", at, None
