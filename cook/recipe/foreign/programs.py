"""What the few programs print that put a list of rules or a path together.

Known are only arguments for which it is certain what they do: a filter of another kind could
change a rule, so it is not guessed at.
"""

from __future__ import annotations

import re

from cook.recipe.foreign.text import Spanned, joined

MAX_NUMBERS = 10_000
"""Of ``seq``."""


def printed(name: str, arguments: list[Spanned], given: Spanned, offset: int) -> Spanned | None:
    """What the program ``name`` prints when it reads ``given``; None where that is not known.

    ``offset`` is its place, for what it prints of its own.
    """
    texts = [a.text for a in arguments]
    match name, texts:
        case "cat", [] | ["-"]:
            return given
        case "echo", _:
            return _echo(arguments, offset)
        case "printf", ["%s", _]:
            return arguments[1]
        case "printf", ["%s\\n", _]:
            return arguments[1] + Spanned("\n", (offset,))
        case "grep" | "egrep", _:
            return _grep(given, texts, name == "egrep")
        case "sed", _:
            return _sed(given, texts)
        case "tr", _:
            return _tr(given, texts)
        case "paste", _ if "".join(t for t in texts if t != "-") in ("-sd,", "-s-d,", "-d,-s"):
            return given.rstrip("\n").replaced(re.compile("\n"), ",")
        case "seq", _ if 1 <= len(texts) <= 3 and all(re.fullmatch(r"\d{1,5}", t) for t in texts):
            return _seq([int(text) for text in texts], offset)
        case "dirname", [path] if "/" in path.rstrip("/"):
            return arguments[0][: path.rstrip("/").rindex("/")]
        case "basename", [path, *suffix] if path.strip("/") and len(suffix) < 2:
            whole = arguments[0].rstrip("/")
            base = whole[whole.text.rfind("/") + 1 :]
            cut = len(suffix[0]) if suffix and base.text[1:].endswith(suffix[0]) else 0
            return base[: len(base) - cut]
    return None


def _echo(arguments: list[Spanned], offset: int) -> Spanned | None:
    newline = Spanned("\n", (offset,))
    if arguments and arguments[0].text in ("-n", "-e", "-E", "-en", "-ne"):
        option, *arguments = arguments
        if "e" in option.text and any("\\" in a.text for a in arguments):
            return None
        newline = Spanned() if "n" in option.text else newline
    blank = Spanned(" ", (offset,))
    parts = [part for argument in arguments for part in (blank, argument)]
    return joined([*parts[1:], newline])


def _seq(numbers: list[int], offset: int) -> Spanned | None:
    """``seq [FIRST [STEP]] LAST``."""
    first, step = numbers[0] if numbers[1:] else 1, numbers[1] if numbers[2:] else 1
    if step == 0 or (numbers[-1] - first) // step > MAX_NUMBERS:
        return None
    text = "".join(f"{number}\n" for number in range(first, numbers[-1] + 1, step))
    return Spanned(text, (offset,) * len(text))


# Of expressions only what picks comments and empty lines, or joins lines.
_CLASSES = {
    r"\s": r"[ \t\r\f\v]",
    "[[:space:]]": r"[ \t\r\f\v]",
    "[[:blank:]]": r"[ \t]",
    r"[ \t]": r"[ \t]",
}
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
    for name, characters in _CLASSES.items():
        posix = posix.replace(name, characters)
    try:
        re.compile(posix)
    except re.error:
        return None
    return posix


def _grep(given: Spanned, texts: list[str], extended: bool) -> Spanned | None:
    """``grep -v``, with any of ``-E``, ``-e`` and a pattern of blanks and ``#``."""
    options = [t for t in texts if re.fullmatch(r"-[vEe]+|--invert-match", t)]
    patterns = [t for t in texts if t not in options]
    if len(patterns) != 1 or not any("v" in option for option in options):
        return None
    extended = extended or any("E" in option for option in options)
    pattern = _python(patterns[0], extended)
    if pattern is None:
        return None
    # grep ends its last line, whatever was given.
    whole = _edit(given, pattern, None, 0, whole=False)
    return whole + Spanned("\n", whole.origin[-1:]) if whole.text[-1:] not in ("", "\n") else whole


_COMMAND = re.compile(
    r"[; \n\t]*(?:s([:/|,;#@!])((?:(?!\1).)*)\1([, ]?)\1(g?)|/((?:[^/\\]|\\.)*)/d)", re.DOTALL
)
_JOIN_LOOP = re.compile(r"\s*:a;\s*N;\s*\$!ba;\s*(s.*)", re.DOTALL)


def _sed(given: Spanned, texts: list[str]) -> Spanned | None:
    """``sed`` with commands ``s/.../,/g`` and ``/.../d``, or the loop that joins lines."""
    options = [t for t in texts if re.fullmatch(r"-[Erz]*e?", t) and t != "-"]
    scripts = [t for t in texts if t not in options]
    several = len(scripts) == sum("e" in option for option in options)
    if not scripts or not (several or len(scripts) == 1):
        return None
    extended = any(set("Er") & set(option) for option in options)
    value, whole = given, any("z" in option for option in options)
    for script in scripts:
        loop = _JOIN_LOOP.fullmatch(script)
        commands = (loop[1] if loop else script).rstrip("; \n\t")
        # The loop gathers all lines without the end of the last.
        body = value.rstrip("\n") if loop else value
        last, at = value[len(body) :], 0
        while at < len(commands):
            found = _COMMAND.match(commands, at)
            pattern = _python(found[2] or found[5] or "", extended) if found else None
            if found is None or pattern is None:
                return None
            by = None if found[1] is None else found[3]
            body = _edit(body, pattern, by, 0 if found[4] else 1, whole or loop is not None)
            at = found.end()
        value = body + last
    return value


def _edit(given: Spanned, pattern: str, by: str | None, count: int, whole: bool) -> Spanned:
    """One command of sed, on the whole text or on each line; ``by`` None deletes it."""
    # Of a whole text `$` is the very end, also after a line end.
    compiled = re.compile(pattern.replace("$", r"\Z") if whole else pattern)
    out: list[Spanned] = []
    for line in [given] if whole else given.lines():
        body = line if whole else line.rstrip("\n")
        if by is not None:
            out += [body.replaced(compiled, by, count), line[len(body) :]]
        elif not compiled.search(body.text):
            out.append(line)
    return joined(out)


def _tr(given: Spanned, texts: list[str]) -> Spanned | None:
    """``tr '\\n' ','``, ``tr -d`` and ``tr -s`` of blanks, commas and line ends."""
    chars = {"\\n": "\n", "\n": "\n", ",": ",", " ": " ", "\\t": "\t"}
    match texts:
        case [old, new] if old in chars and new in chars:
            return given.replaced(re.compile(chars[old]), chars[new])
        case ["-d", "[:space:]"]:
            return given.replaced(re.compile(r"[ \t\n\r\f\v]"), "")
        case ["-d", old] if old in chars:
            return given.replaced(re.compile(chars[old]), "")
        case ["-s", old, *new] if old in chars and len(new) < 2 and {*new} <= {*chars}:
            by = chars[new[0]] if new else chars[old]
            return given.replaced(re.compile(f"[{chars[old]}{by}]+"), by)
    return None
