"""What the few programs print that put a list of rules or a path together.

Known are only arguments for which it is certain what they do: a filter of another kind could
change a rule, so it is not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from cook.recipe.foreign.text import Spanned, joined

MAX_NUMBERS = 10_000
"""Of ``seq``."""


class _Edit(NamedTuple):
    """What a filter does to each line, or to the text as a ``whole``: the first match of
    ``pattern`` (or ``all`` of them) becomes ``by``; with None a line that has one is dropped."""

    pattern: str
    by: str | None = None
    all: bool = True
    whole: bool = False

    def of(self, given: Spanned) -> Spanned:
        # Of a whole text `$` is the very end, also after a line end.
        pattern = self.pattern.replace("$", r"\Z") if self.whole else self.pattern
        out: list[Spanned] = []
        for line in [given] if self.whole else given.lines():
            body = line if self.whole else line.rstrip("\n")
            if self.by is not None:
                out += [body.replaced(pattern, self.by, 0 if self.all else 1), line[len(body) :]]
            elif not re.search(pattern, body.text):
                out.append(line)
        return joined(out)


def output(name: str, arguments: Sequence[Spanned], given: Spanned, offset: int) -> Spanned | None:
    """What the program ``name`` prints when it reads ``given``; None where that is not known.

    ``offset`` is its place, for what it prints of its own.
    """
    texts = [argument.text for argument in arguments]
    line_end = Spanned("\n", (offset,))
    match name, texts:
        case "cat", [] | ["-"]:
            return given
        case "echo", ["-n" | "-e" | "-E" | "-en" | "-ne" as option, *rest]:
            escapes = "e" in option and any("\\" in text for text in rest)
            words = _spaced(arguments[1:], offset)
            return None if escapes else words if "n" in option else joined([words, line_end])
        case "echo", _:
            return joined([_spaced(arguments, offset), line_end])
        case "printf", ["%s", _]:
            return arguments[1]
        case "printf", ["%s\\n", _]:
            return joined([arguments[1], line_end])
        case "grep" | "egrep", _ if (edit := _grep(texts, name == "egrep")) is not None:
            # grep ends its last line, whatever was given.
            lines = edit.of(given)
            ended = lines.text[-1:] in ("", "\n")
            return lines if ended else joined([lines, Spanned("\n", lines.origin[-1:])])
        case "sed", _:
            return _sed(texts, given)
        case "tr", _ if (edit := _tr(texts)) is not None:
            return edit.of(given)
        case "paste", _ if "".join(t for t in texts if t != "-") in ("-sd,", "-s-d,", "-d,-s"):
            return given.rstrip("\n").replaced("\n", ",")
        case "seq", _ if 1 <= len(texts) <= 3 and all(re.fullmatch(r"\d{1,5}", t) for t in texts):
            # seq [FIRST [STEP]] LAST
            numbers = [int(text) for text in texts]
            first, step = numbers[0] if numbers[1:] else 1, numbers[1] if numbers[2:] else 1
            if step == 0 or (numbers[-1] - first) // step > MAX_NUMBERS:
                return None
            printed = "".join(f"{number}\n" for number in range(first, numbers[-1] + 1, step))
            return Spanned(printed, (offset,) * len(printed))
        case "dirname", [path] if "/" in path.rstrip("/"):
            return arguments[0][: path.rstrip("/").rindex("/")]
        case "basename", [path, *suffix] if path.strip("/") and len(suffix) < 2:
            whole = arguments[0].rstrip("/")
            base = whole[whole.text.rfind("/") + 1 :]
            cut = len(suffix[0]) if suffix and base.text[1:].endswith(suffix[0]) else 0
            return base[: len(base) - cut]
    return None


def _spaced(arguments: Sequence[Spanned], offset: int) -> Spanned:
    blank = Spanned(" ", (offset,))
    return joined([part for argument in arguments for part in (blank, argument)][1:])


# Of expressions only what picks comments and empty lines, or joins lines.
_BLANKS = {r"\s": r"[ \t\r\f\v]", "[[:space:]]": r"[ \t\r\f\v]", "[[:blank:]]": r"[ \t]"}
_EXPRESSION = re.compile(
    r"(?:\\s|\\n|\[\[:(?:space|blank):\]\]|\[ \\t\]|\[ \]|\.\*|[\^$#*+?|() ,])*"
)


def _python(posix: str, extended: bool) -> str | None:
    """An expression of blanks, ``#``, commas and line ends as Python's; None if it is more."""
    if not extended:
        # A basic expression spells its operators with a backslash.
        if re.search(r"(?<!\\)[+?|()]", posix):
            return None
        posix = re.sub(r"\\([+?|()])", r"\1", posix)
    repeats_repeats = re.search(r"\)[*+?]", posix)  # which may take for ever
    if repeats_repeats or not _EXPRESSION.fullmatch(posix):
        return None
    for name, characters in _BLANKS.items():
        posix = posix.replace(name, characters)
    try:
        re.compile(posix)
    except re.error:
        return None
    return posix


def _grep(texts: Sequence[str], extended: bool) -> _Edit | None:
    """``grep -v``, with any of ``-E``, ``-e`` and a pattern of blanks and ``#``."""
    options = [t for t in texts if re.fullmatch(r"-[vEe]+|--invert-match", t)]
    patterns = [t for t in texts if t not in options]
    if len(patterns) != 1 or "v" not in "".join(options):
        return None
    pattern = _python(patterns[0], extended or "E" in "".join(options))
    return None if pattern is None else _Edit(pattern)


_COMMAND = re.compile(
    r"[; \n\t]*(?:s([:/|,;#@!])((?:(?!\1).)*)\1([, ]?)\1(g?)|/((?:[^/\\]|\\.)*)/d)", re.DOTALL
)
_JOIN_LOOP = re.compile(r"\s*:a;\s*N;\s*\$!ba;\s*(s.*)", re.DOTALL)


def _sed(texts: Sequence[str], value: Spanned) -> Spanned | None:
    """``sed`` with commands ``s/.../,/g`` and ``/.../d``, or the loop that joins lines."""
    options = [t for t in texts if re.fullmatch(r"-[Erz]*e?", t) and t != "-"]
    scripts, letters = [t for t in texts if t not in options], "".join(options)
    if not scripts or len(scripts) not in (1, letters.count("e")):
        return None
    for script in scripts:
        loop = _JOIN_LOOP.fullmatch(script)
        commands, at = (loop[1] if loop else script).rstrip("; \n\t"), 0
        # The loop gathers all lines without the end of the last.
        body = value.rstrip("\n") if loop else value
        last = value[len(body) :]
        while at < len(commands):
            found = _COMMAND.match(commands, at)
            pattern = found and _python(found[2] or found[5] or "", bool({*"Er"} & {*letters}))
            if found is None or pattern is None:
                return None
            by = None if found[1] is None else found[3]
            body = _Edit(pattern, by, bool(found[4]), "z" in letters or loop is not None).of(body)
            at = found.end()
        value = joined([body, last])
    return value


def _tr(texts: Sequence[str]) -> _Edit | None:
    """``tr '\\n' ','``, ``tr -d`` and ``tr -s`` of blanks, commas and line ends."""
    chars = {"\\n": "\n", "\n": "\n", ",": ",", " ": " ", "\\t": "\t"}
    match texts:
        case ["-d", "[:space:]"]:
            return _Edit(r"[ \t\n\r\f\v]", "", whole=True)
        case ["-d", old] if old in chars:
            return _Edit(chars[old], "", whole=True)
        case ["-s", old, *new] if old in chars and len(new) < 2 and {*new} <= {*chars}:
            by = chars[new[0]] if new else chars[old]
            return _Edit(f"[{chars[old]}{by}]+", by, whole=True)
        case [old, new] if old in chars and new in chars:
            return _Edit(chars[old], chars[new], whole=True)
    return None
