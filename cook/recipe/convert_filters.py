"""The few programs that put a list of rules together, worked out on text.

Only with arguments for which it is certain what they do: a filter of another kind could change
a rule, so it is not guessed at.
"""

from __future__ import annotations

import re

from cook.recipe.convert_text import Spanned, joined


def filtered(name: str, arguments: list[Spanned], given: Spanned, offset: int) -> Spanned | None:
    """What the program ``name`` prints when it reads ``given``; None where that is not known.

    ``offset`` is its place, for what it prints of its own.
    """
    texts = [a.text for a in arguments]
    match name:
        case "cat":
            return given if texts in ([], ["-"]) else None
        case "echo":
            return _echo(arguments, offset)
        case "printf":
            return _printf(arguments, offset)
        case "grep" | "egrep":
            return _grep(given, texts, name == "egrep")
        case "sed":
            return _sed(given, texts)
        case "tr":
            return _tr(given, texts)
        case "paste":
            commas = (["-sd,"], ["-s", "-d,"], ["-sd", ","], ["-s", "-d", ","], ["-d,", "-s"])
            return _comma_joined(given) if [t for t in texts if t != "-"] in commas else None
    return None


def _echo(arguments: list[Spanned], offset: int) -> Spanned | None:
    newline = Spanned("\n", (offset,))
    if arguments and arguments[0].text in ("-n", "-e", "-E", "-en", "-ne"):
        option, *arguments = arguments
        if "e" in option.text and any("\\" in a.text for a in arguments):
            return None
        newline = Spanned() if "n" in option.text else newline
    parts: list[Spanned] = []
    for argument in arguments:
        parts += [Spanned(" ", (offset,)), argument]
    return joined([*parts[1:], newline])


def _printf(arguments: list[Spanned], offset: int) -> Spanned | None:
    match [a.text for a in arguments]:
        case ["%s", _]:
            return arguments[1]
        case ["%s\\n", _]:
            return arguments[1] + Spanned("\n", (offset,))
    return None


# Of expressions only what picks comments and empty lines, or joins lines.
_ATOM = {"\\s": r"[ \t\r\f\v]", "[[:space:]]": r"[ \t\r\f\v]", "[[:blank:]]": r"[ \t]"}
_TOKENS = re.compile(
    r"\\s|\[\[:(?:space|blank):\]\]|\\n|\.\*|\\[+?|()]|[\^$#*+?|() ,]|\[ \\t\]|\[ \]"
)


def _python(pattern: str, extended: bool) -> str | None:
    """A POSIX expression of blanks, ``#``, commas and line ends as Python's; None if it is more."""
    out, at = "", 0
    while at < len(pattern):
        found = _TOKENS.match(pattern, at)
        if not found:
            return None
        token, at = found[0], found.end()
        if token[-1] == ")" and pattern[at : at + 1] in ("*", "+", "?", "\\"):
            return None  # repeats inside repeats may take for ever
        if token in _ATOM:
            out += _ATOM[token]
        elif token == "[ \\t]":
            out += r"[ \t]"
        elif len(token) == 2 and token[0] == "\\" and token[1] in "+?|()":
            # A basic expression spells its operators with a backslash, an extended one without.
            if extended:
                return None
            out += token[1]
        elif token in ("+", "?", "|", "(", ")"):
            if not extended:
                return None
            out += token
        elif token in (" ", "#", ","):
            out += re.escape(token)
        else:
            out += token
    try:
        re.compile(out)
    except re.error:
        return None
    return out


def _grep(given: Spanned, texts: list[str], extended: bool) -> Spanned | None:
    """``grep -v``, with any of ``-E``, ``-e`` and a pattern of blanks and ``#``."""
    patterns = []
    inverted = False
    for text in texts:
        if re.fullmatch(r"-[vEe]+", text):
            inverted |= "v" in text
            extended |= "E" in text
        elif text == "--invert-match":
            inverted = True
        else:
            patterns.append(text)
    if len(patterns) != 1 or not inverted:
        return None
    pattern = _python(patterns[0], extended)
    if pattern is None:
        return None
    kept = [line for line in given.lines() if not re.search(pattern, line.text.rstrip("\n"))]
    # grep ends its last line, whatever was given.
    whole = joined(kept)
    return whole + Spanned("\n", whole.origin[-1:]) if whole.text[-1:] not in ("", "\n") else whole


_SUBSTITUTE = re.compile(r"s([:/|,;#@!])((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", re.DOTALL)
_DELETE = re.compile(r"/((?:[^/\\]|\\.)*)/d")
_JOIN_LOOP = re.compile(r":a;\s*N;\s*\$!ba;\s*(s.*)", re.DOTALL)


def _sed(given: Spanned, texts: list[str]) -> Spanned | None:
    extended = whole = False
    scripts: list[str] = []
    for number, text in enumerate(texts):
        if re.fullmatch(r"-[Erz]*e?", text) and len(text) > 1:
            extended |= "E" in text or "r" in text
            whole |= "z" in text
        elif text.startswith("-") or (scripts and texts[number - 1] != "-e"):
            return None
        else:
            scripts.append(text)
    value = given
    for script in scripts:
        loop = _JOIN_LOOP.fullmatch(script.strip())
        commands = _sed_commands(loop[1] if loop else script, extended)
        if commands is None:
            return None
        # The loop gathers all lines without the end of the last.
        body = value.rstrip("\n") if loop else value
        last = value[len(body) :]
        for pattern, by, everywhere in commands:
            body = _edit(body, pattern, by, everywhere, whole or loop is not None)
        value = body + last
    return value if scripts else None


def _sed_commands(script: str, extended: bool) -> list[tuple[str, str | None, bool]] | None:
    """(pattern, replacement or None to delete the line, everywhere), or None if it is more."""
    commands: list[tuple[str, str | None, bool]] = []
    at = 0
    while at < len(script):
        if script[at] in "; \n\t":
            at += 1
        elif found := _SUBSTITUTE.match(script, at):
            pattern = _python(found[2], extended)
            if pattern is None or not re.fullmatch(r"[, ]?", found[3]):
                return None
            commands.append((pattern, found[3], bool(found[4])))
            at = found.end()
        elif found := _DELETE.match(script, at):
            pattern = _python(found[1], extended)
            if pattern is None:
                return None
            commands.append((pattern, None, False))
            at = found.end()
        else:
            return None
    return commands


def _edit(given: Spanned, pattern: str, by: str | None, everywhere: bool, whole: bool) -> Spanned:
    """One command of sed, on the whole text or on each line."""
    count = 0 if everywhere else 1
    if whole:
        # `$` is the very end here, also after a line end.
        compiled = re.compile(pattern.replace("$", r"\Z"))
        if by is None:
            return Spanned() if compiled.search(given.text) else given
        return given.replaced(compiled, by, count)
    compiled = re.compile(pattern)
    out: list[Spanned] = []
    for line in given.lines():
        body = line.rstrip("\n")
        if by is not None:
            out += [body.replaced(compiled, by, count), line[len(body) :]]
        elif not compiled.search(body.text):
            out.append(line)
    return joined(out)


def _tr(given: Spanned, texts: list[str]) -> Spanned | None:
    """``tr '\\n' ','``, ``tr -d`` and ``tr -s`` of blanks, commas and line ends."""
    chars = {"\\n": "\n", "\n": "\n", ",": ",", " ": " ", "\\t": "\t", "[:space:]": " \t\n\r\f\v"}
    match texts:
        case [old, new] if old in chars and new in chars and len(chars[old]) == 1:
            return given.replaced(re.compile(re.escape(chars[old])), chars[new])
        case ["-d", old] if old in chars:
            return given.replaced(re.compile(f"[{re.escape(chars[old])}]"), "")
        case ["-s", old] if old in chars and len(chars[old]) == 1:
            return given.replaced(re.compile(f"{re.escape(chars[old])}+"), chars[old])
        case ["-s", old, new] if chars.get(old) == "\n" and new in chars and len(chars[new]) == 1:
            return given.replaced(re.compile(r"\n+"), chars[new])
    return None


def _comma_joined(given: Spanned) -> Spanned:
    return given.rstrip("\n").replaced(re.compile("\n"), ",")
