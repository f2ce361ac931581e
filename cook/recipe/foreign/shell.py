"""What a script's variables hold and its commands are given, worked out without running it.

Commands run in order, once. Known are ``read`` and the few programs that put a list of rules
together, and those only with arguments for which it is certain what they do: a filter of another
kind could change a rule, so it is not guessed at. Everything else is :class:`Unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cook.recipe.foreign.bash import (
    Literal,
    Part,
    Pipeline,
    Script,
    SimpleCommand,
    Unknown,
    Variable,
    Word,
)
from cook.recipe.foreign.text import Spanned, joined


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


Value = Spanned | Unknown


@dataclass(frozen=True)
class Call:
    """A command as it is given: its words, program first."""

    words: tuple[Value, ...]
    offset: int


@dataclass
class Shell:
    """Runs a script in this sense; ``variables`` afterwards hold what was last assigned."""

    variables: dict[str, Value] = field(default_factory=dict)

    def calls(self, script: Script) -> Iterator[Call]:
        """Every command outside pipelines and substitutions, in order."""
        for pipeline in script:
            for command in pipeline:
                for assignment in command.assignments:
                    value = self._text(assignment.value)
                    if command.inside:
                        reason = f"it is assigned inside `{command.inside}`"
                        value = Unknown(reason, assignment.offset)
                    elif assignment.appends:
                        before = self.variables.get(assignment.name, Spanned())
                        value = _plus(before, value)
                    self.variables[assignment.name] = value
            first = pipeline[0]
            if not first.words:
                continue
            words = self._fields(first.words)
            if len(pipeline) == 1 and _is(words, "read") and first.stdin is not None:
                self._read(words, first.stdin)
            yield Call(words, first.words[0].offset)

    def _read(self, words: Sequence[Value], stdin: Word) -> None:
        *options, last = words
        if not isinstance(last, Spanned):
            return
        known = [w.text for w in options[1:] if isinstance(w, Spanned)]
        whole = known in (["-r", "-d", ""], ["-d", "", "-r"], ["-rd", ""])
        text = self._text(stdin)
        if isinstance(text, Spanned):
            # `read` drops blanks at both ends.
            text = text.strip() if whole else Unknown("only `read -r -d ''` is read", last.start)
        self.variables[last.text] = text

    def _text(self, word: Word) -> Value:
        """The word as one text: no splitting at blanks."""
        value: Value = Spanned()
        for part in word.parts:
            value = _plus(value, self._part(part))
        return value

    def _fields(self, words: Sequence[Word]) -> tuple[Value, ...]:
        out: list[Value] = []
        for word in words:
            out += self._split(word)
        return tuple(out)

    def _split(self, word: Word) -> list[Value]:
        """The word as the fields it becomes: what is expanded outside quotes splits at blanks."""
        fields: list[Value] = []
        current: Value | None = None
        for part in word.parts:
            value = self._part(part)
            quoted = isinstance(part, Literal) or getattr(part, "quoted", False)
            if isinstance(value, Unknown) or quoted:
                current = value if current is None else _plus(current, value)
                continue
            pieces = list(value.words())
            if value.text[:1].isspace() and current is not None:
                fields.append(current)
                current = None
            for number, piece in enumerate(pieces):
                if number:
                    fields.append(current or Spanned())
                    current = None
                current = piece if current is None else _plus(current, piece)
            if pieces and value.text[-1].isspace() and current is not None:
                fields.append(current)
                current = None
        return [*fields, current] if current is not None else fields

    def _part(self, part: Part) -> Value:
        if isinstance(part, Literal):
            return part.text
        if isinstance(part, Unknown):
            return part
        if isinstance(part, Variable):
            if part.name == "HOME" and part.name not in self.variables:
                return Spanned("~", (part.offset,))
            unset = Unknown(f"the script does not set ${part.name}", part.offset)
            return self.variables.get(part.name, unset)
        if len(part.script) != 1:
            return Unknown("only one pipeline inside $(...) is read", part.offset)
        value = self._pipeline(part.script[0], part.offset)
        return value.rstrip("\n") if isinstance(value, Spanned) else value

    def _pipeline(self, pipeline: Pipeline, offset: int) -> Value:
        value: Value = Spanned()
        for command in pipeline:
            if command.stdin is not None:
                value = self._text(command.stdin)
            if isinstance(value, Unknown):
                return value
            value = self._filter(command, value, offset)
        return value

    def _filter(self, command: SimpleCommand, given: Spanned, offset: int) -> Value:
        offset = command.words[0].offset if command.words else offset
        words = self._fields(command.words)
        unknown = next((w for w in words if isinstance(w, Unknown)), None)
        if unknown is not None:
            return unknown
        given_words = [w for w in words if isinstance(w, Spanned)] or [Spanned()]
        name, arguments = given_words[0], given_words[1:]
        found = filtered(name.text, arguments, given, offset)
        shown = " ".join(word.text for word in given_words)
        if found is None:
            return Unknown(f"cook does not know what `{shown}` does", offset)
        return found


def _plus(left: Value, right: Value) -> Value:
    if isinstance(left, Unknown):
        return left
    return right if isinstance(right, Unknown) else joined((left, right))


def _is(words: Sequence[Value], name: str) -> bool:
    return bool(words) and isinstance(words[0], Spanned) and words[0].text == name
