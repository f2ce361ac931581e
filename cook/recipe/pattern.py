"""Tensor-name patterns: the ECMAScript subset that both engines' ``std::regex`` reads.

A pattern is read token by token, so that what ``regex`` takes and ECMAScript does not is refused
at its column, and matched with ``regex`` under a time limit, so that a catastrophic one is an
error and not a hang. Semantics are ECMAScript's as the engines use it: unanchored search,
case-sensitive, ASCII classes, ``$`` the end only. Engines never see these patterns: cook sends
them explicit tensor names (:mod:`cook.recipe.engine_rules`), so ``{m,n}`` and upper case are
safe on both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
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

# Patterns that hung once, so that a recipe with one is reported in one time limit and not in many.
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


_Denied = Sequence[tuple[str, str, str | None]]
_DENIED_ANYWHERE: _Denied = (
    (r"\\\Z", "a lone `\\` at the end", "escape it: `\\\\`"),
    (r"\\\d", "back-references (`{}`) are not in the subset", None),
    (r"\\[pP]", "Unicode properties are not ECMAScript", None),
    (r"\\[xuc]", "`{}` escapes are not in the subset", "write the character itself"),
    (r"\\[AZzGQEKR]", "`{}` is not ECMAScript", "use `^` and `$`"),
)
_PUNCTUATION = re.escape("^$\\.*+?()[]{}|/-,=!\"#%&':;<>@`~ _")
# What `regex` takes and the subset does not: where it stands, why it is refused, a hint.
_DENIED: _Denied = (
    *_DENIED_ANYWHERE,
    (rf"\\[^{_PUNCTUATION}dDwWsStnrfvbB]", "unknown escape `{}`", None),
    (r"\(\?=", "lookahead `{}` cannot be written for llama.cpp, which splits at `=`", None),
    (r"\(\?<[=!]", "lookbehind is not ECMAScript", None),
    (r"\(\?[P<']", "named groups are not in the subset", "use `(?:...)`"),
    (r"\(\?>", "atomic groups are not ECMAScript", None),
    (r"\(\?(?![:!])", "inline flags are not ECMAScript", "matching is case-sensitive"),
    (r"[}\]]", "a bare `{}`", "escape it: `\\{}`"),
)
_DENIED_IN_CLASS: _Denied = (
    *_DENIED_ANYWHERE,
    (rf"\\[^{_PUNCTUATION}dwstnrfv]", "unknown escape `{}`", None),
    (r"\[[:.=]", "POSIX classes are not ECMAScript", "write the range: `0-9`"),
)
_TOKEN = re.compile(
    r"(?P<open>\((?:\?[:!])?)|(?P<close>\))|(?P<or>\|)|(?P<repeat>[*+?{])|(?P<class>\[)"
    r"|(?P<assertion>[\^$]|\\[bB])|(?P<char>\\?.)",
    re.DOTALL,
)
_COUNTS = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
# What `regex` would read otherwise. A group's text is never asked for.
_WRITTEN = {"(": "(?:", "^": r"\A", "$": r"\Z", ".": r"[^\n\r]"}


@dataclass
class _Group:
    """A group that is not closed yet; ``largest`` is the largest count inside it."""

    at: int
    opening: str
    largest: int = 1


@lru_cache(maxsize=512)
def _translate(source: str) -> str:
    """The pattern as ``regex`` reads it; PatternError at the first that is not allowed."""
    if not source:
        raise PatternError("an empty pattern matches every tensor", 0, "write `re:.*`")
    if len(source) > MAX_LENGTH:
        raise PatternError(f"longer than {MAX_LENGTH} characters", MAX_LENGTH)
    out: list[str] = []
    groups = [_Group(0, "")]
    # The kind of the token before, and the largest count inside the atom that it ends.
    before, inner = "open", 1
    at = 0
    while at < len(source):
        start = at
        _deny(_DENIED, source, start)
        token = _TOKEN.match(source, start)
        assert token is not None  # the last alternative is any character
        kind, text, at = str(token.lastgroup), token[0], token.end()
        if kind == "repeat":
            text, at, count = _repeat(source, start, before)
            inner *= count
            if inner > MAX_REPEAT:
                raise PatternError(f"repeat counts inside one another above {MAX_REPEAT}", start)
        elif kind == "close":
            if len(groups) == 1:
                raise PatternError("`)` without `(`", start, "escape it: `\\)`")
            group = groups.pop()
            kind, inner = "assertion" if group.opening == "(?!" else "char", group.largest
        else:
            inner = 1
        groups[-1].largest = max(groups[-1].largest, inner)
        if kind == "open":
            if len(groups) > MAX_DEPTH:
                raise PatternError(f"groups nested deeper than {MAX_DEPTH}", at)
            groups.append(_Group(start, text))
        elif kind == "class":
            text, at = _class(source, start)
        before = kind
        out.append(_WRITTEN.get(text) or text)
    if len(groups) > 1:
        raise PatternError("`(` without `)`", groups[-1].at, "close it, or escape it: `\\(`")
    return "".join(out)


def _deny(denied: _Denied, source: str, at: int) -> None:
    if source[at] not in r"\([]}":
        return
    for where, message, hint in denied:
        if found := re.match(where, source[at : at + 4]):
            raise PatternError(message.format(found[0]), at, hint and hint.format(found[0]))


def _repeat(source: str, at: int, before: str) -> tuple[str, int, int]:
    """The quantifier at ``at``, where it ends, and its larger count."""
    char = source[at]
    if before in ("open", "or"):
        message = "a bare `{`" if char == "{" else f"nothing for `{char}` to repeat"
        raise PatternError(message, at, f"escape it: `\\{char}`")
    if before == "assertion":
        raise PatternError("an assertion cannot be repeated", at)
    if before == "repeat" and char == "+":
        raise PatternError("possessive quantifiers are not ECMAScript", at)
    if before == "repeat":
        raise PatternError("a quantifier after a quantifier", at, "group it: `(?:...)`")
    text, end, count = char, at + 1, 1
    if char == "{":
        counts = _COUNTS.match(source, at)
        if counts is None:
            hint = "write {n}, {n,} or {n,m}; escape a literal brace: `\\{`"
            raise PatternError("not a repeat count", at, hint)
        low, high = int(counts[1]), int(counts[3] or counts[1])
        if max(low, high) > MAX_REPEAT:
            raise PatternError(f"a repeat count above {MAX_REPEAT}", at)
        if low > high:
            raise PatternError("a repeat count whose lower bound is the larger", at)
        text, end, count = counts[0], counts.end(), max(1, high)
    lazy = source[end : end + 1] == "?"
    return text + "?" * lazy, end + lazy, count


def _class(source: str, start: int) -> tuple[str, int]:
    """The character class that opens at ``start``, and where it ends."""
    at = start + 1
    negated = source[at : at + 1] == "^"
    at += negated
    first, out = at, ["[^" if negated else "["]
    while source[at : at + 1] != "]":
        if at >= len(source):
            raise PatternError("`[` without `]`", start, "close it, or escape it: `\\[`")
        item = at
        low, at = _class_char(source, item)
        out.append(_in_class(low))
        if source[at : at + 1] == "-" and source[at + 1 : at + 2] not in ("]", ""):
            high, at = _class_char(source, at + 1)
            if len(low) != 1 or len(high) != 1:
                raise PatternError("a range needs single characters at both ends", item)
            if low > high:
                raise PatternError(f"the range {low}-{high} is out of order", item)
            out.append(f"-{_in_class(high)}")
    if at == first:
        raise PatternError("an empty character class", start)
    return "".join([*out, "]"]), at + 1


def _class_char(source: str, at: int) -> tuple[str, int]:
    """One character, or an escaped class (`\\d`), and where it ends."""
    _deny(_DENIED_IN_CLASS, source, at)
    if source[at] != "\\":
        return source[at], at + 1
    char = source[at + 1]
    return f"\\{char}" if char in "dws" else _CONTROLS.get(char, char), at + 2


def _in_class(char: str) -> str:
    return re.escape(char) if len(char) == 1 else char
