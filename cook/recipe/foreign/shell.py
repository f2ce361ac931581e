"""What a script's variables hold and its commands are given, worked out without running it.

Commands are taken in order; loops over known words and functions are computed, both branches of a
condition are read. Known are ``read`` and the few programs that put a list of rules or a path
together, and those only with arguments for which it is certain what they do: a filter of another
kind could change a rule, so it is not guessed at. Everything else is :class:`Unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cook.errors import InputError
from cook.recipe.foreign.bash import (
    MAX_DEPTH,
    Expansion,
    Function,
    Literal,
    Loop,
    Part,
    Pipeline,
    Script,
    SimpleCommand,
    Unknown,
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
        case "basename":
            return _basename(arguments)
        case "dirname" if len(arguments) == 1 and "/" in texts[0].rstrip("/"):
            return arguments[0].rstrip("/")[: texts[0].rstrip("/").rindex("/")]
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


def _basename(arguments: list[Spanned]) -> Spanned | None:
    """``basename PATH [SUFFIX]``."""
    if not 1 <= len(arguments) <= 2 or not arguments[0].text.strip("/"):
        return None
    path = arguments[0].rstrip("/")
    name = path[path.text.rfind("/") + 1 :]
    suffix = arguments[1].text if len(arguments) == 2 else ""
    return name[: len(name) - len(suffix)] if name.text[1:].endswith(suffix) and suffix else name


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
MAX_COMMANDS = 20_000
"""Commands that loops and functions may come to."""
MAX_FIELDS = 500_000
MAX_CHARS = 1 << 25
"""Words, and characters of them, that all expansions may come to."""
MAX_EDITED = 1 << 14
"""Characters of a text that ``${x/...}`` and its like work on."""


@dataclass(frozen=True)
class Call:
    """A command as it is given: its words, program first; ``piped`` is the one before it in a
    pipeline."""

    words: tuple[Value, ...]
    offset: int
    stdin: Value | None = None
    piped: Call | None = None
    writes: bool = False


@dataclass
class Shell:
    """Runs a script in this sense; ``variables`` afterwards hold what was last assigned, a list
    for an array. ``parameters`` are a function's, None outside of one; ``uncalled`` the functions
    that nothing has called, by their places."""

    variables: dict[str, Value | list[Value]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    parameters: list[Value] | None = None
    uncalled: dict[int, Function] = field(default_factory=dict)
    _commands: int = 0
    _fields_made: int = 0
    _expanded_chars: int = 0
    _depth: int = 0
    _substituted: list[Call] = field(default_factory=list)
    _looks_inside: bool = False

    def calls(self, script: Script, inside: str | None = None) -> Iterator[Call]:
        """Every command in order, those of substitutions that are not computed among them;
        ``inside`` is what makes all of them conditional. InputError for a script that comes to too
        many commands."""
        for statement in script:
            if isinstance(statement, Function):
                self.functions[statement.name] = statement
                self.uncalled[statement.offset] = statement
            elif isinstance(statement, Loop):
                yield from self._loop(statement, inside)
            else:
                yield from self._run(statement, inside)

    def _loop(self, loop: Loop, inside: str | None) -> Iterator[Call]:
        values: Sequence[Value] = self.parameters or ()
        if loop.words is not None:
            values = self._fields(loop.words)
        elif self.parameters is None:
            values = (
                Unknown("the script's own arguments are known only when it runs", loop.offset),
            )
        before = dict(self.variables)
        # Where cook sees no value, what the loop holds is still looked at, once.
        for value in values or (Unknown("it is empty", loop.offset),):
            if isinstance(value, Unknown):
                value = replace(value, reason=f"`for {loop.variable}` runs over it: {value.reason}")
            elif any(c in value.text for c in "*?") and not any(
                isinstance(part, Literal) and part.quoted
                for word in loop.words or ()
                for part in word.parts
            ):
                reason = f"`for {loop.variable}` runs over the files `{value.text}`"
                value = Unknown(reason, value.start)
            self.variables[loop.variable] = value
            yield from self.calls(loop.body, inside or loop.inside)
        if not values:
            self.variables = before

    def _run(self, pipeline: Pipeline, inside: str | None) -> Iterator[Call]:
        call: Call | None = None
        for command in pipeline:
            self._commands += 1
            if self._commands > MAX_COMMANDS:
                raise InputError(f"the script's loops come to more than {MAX_COMMANDS} commands")
            for assignment in command.assignments:
                if why := command.inside or inside:
                    reason = f"it is assigned inside `{why}`"
                    self.variables[assignment.name] = Unknown(reason, assignment.offset)
                elif isinstance(assignment.value, Word):
                    value = self._text(assignment.value)
                    before = self.variables.get(assignment.name, Spanned())
                    if assignment.appends and isinstance(before, list):
                        value = Unknown("a text is added to an array", assignment.offset)
                    elif assignment.appends:
                        value = self._counted(_plus(before, value))  # type: ignore[arg-type]
                    self.variables[assignment.name] = value
                else:
                    before = self.variables.get(assignment.name, [])
                    kept = before if isinstance(before, list) else [before]
                    added = self._fields(assignment.value)
                    self.variables[assignment.name] = [
                        *(kept if assignment.appends else ()),
                        *added,
                    ]
            words = self._fields(command.words)
            substituted, self._substituted = self._substituted, []
            yield from substituted
            if not words:
                continue
            function = self.functions.get(words[0].text) if isinstance(words[0], Spanned) else None
            if function is not None:
                yield from self._call(function, words[1:], command.inside or inside)
                continue
            if len(pipeline) == 1 and _is(words, "read") and command.stdin is not None:
                self._read(words, command.stdin)
            elif _is(words, "read"):
                for word in words[1:]:
                    if isinstance(word, Spanned) and not word.text.startswith("-"):
                        reason = "`read` takes it from a pipe or a file"
                        self.variables[word.text] = Unknown(reason, command.words[0].offset)
            elif _is(words, "mapfile") or _is(words, "readarray"):
                if isinstance(words[-1], Spanned):
                    reason = f"`{words[0].text}` takes it from a pipe or a file"  # type: ignore[union-attr]
                    self.variables[words[-1].text] = Unknown(reason, command.words[0].offset)
            elif _is(words, "shift") and self.parameters is not None:
                count = words[1].text if words[1:] and isinstance(words[1], Spanned) else "1"
                del self.parameters[: int(count) if count.isdecimal() else len(self.parameters)]
            stdin = None if command.stdin is None else self._text(command.stdin)
            call = Call(words, command.words[0].offset, stdin, call, command.writes)
            yield call

    def _call(
        self, function: Function, arguments: Sequence[Value], inside: str | None
    ) -> Iterator[Call]:
        if self._depth >= MAX_DEPTH:
            raise InputError(f"the script's functions call one another deeper than {MAX_DEPTH}")
        self.uncalled.pop(function.offset, None)
        around, self.parameters = self.parameters, list(arguments)
        self._depth += 1
        yield from self.calls(function.body, inside)
        self._depth -= 1
        self.parameters = around

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
        return self._counted(value)

    def _counted(self, value: Value) -> Value:
        self._expanded_chars += len(value) if isinstance(value, Spanned) else len(value.tail)
        if self._expanded_chars > MAX_CHARS:
            raise InputError(f"the script's expansions come to more than {MAX_CHARS} characters")
        return value

    def _fields(self, words: Sequence[Word]) -> tuple[Value, ...]:
        out: list[Value] = []
        for word in words:
            out += self._split(word)
        self._fields_made += len(out)
        if self._fields_made > MAX_FIELDS:
            raise InputError(f"the script's arrays and loops come to more than {MAX_FIELDS} words")
        return tuple(out)

    def _split(self, word: Word) -> list[Value]:
        """The word as the fields it becomes: what is expanded outside quotes splits at blanks, an
        array gives a field for each of its elements."""
        fields: list[Value] = []
        current: Value | None = None
        none = False  # `"$@"` of no parameters: no word at all
        for part in word.parts:
            quoted = isinstance(part, Literal) or getattr(part, "quoted", False)
            elements = self._elements(part) if isinstance(part, Expansion) else None
            if elements is not None and (not quoted or part.index == "@" or part.name == "@"):  # type: ignore[union-attr]
                if not quoted:
                    elements = [
                        piece
                        for one in elements
                        for piece in (one.words() if isinstance(one, Spanned) else (one,))
                    ]
                none = none or not elements
                for number, element in enumerate(elements):
                    if number:
                        fields.append(current if current is not None else Spanned())
                        current = None
                    current = element if current is None else _plus(current, element)
                continue
            value = self._counted(self._part(part))
            if isinstance(value, Unknown) or quoted:
                current = value if current is None else _plus(current, value)
                continue
            pieces = list(value.words())
            if value.text[:1].isspace() and current is not None:
                fields.append(current)
                current = None
            for number, piece in enumerate(pieces):
                if number:
                    fields.append(current if current is not None else Spanned())
                    current = None
                current = piece if current is None else _plus(current, piece)
            if pieces and value.text[-1].isspace() and current is not None:
                fields.append(current)
                current = None
        if current is None or (none and current == Spanned()):
            return fields
        return [*fields, current]

    def _elements(self, part: Expansion) -> list[Value] | None:
        """Of an array as a whole, or of a function's parameters; None for a single value."""
        if part.operator:
            return None
        if part.name in ("@", "*"):
            return self.parameters
        value = self.variables.get(part.name.lstrip("!"))
        if part.name[0] == "!" and isinstance(value, list):
            return [Spanned(str(n), (part.offset,) * len(str(n))) for n in range(len(value))]
        if part.index in ("@", "*") and value is not None:
            return value if isinstance(value, list) else [value]
        return None

    def _part(self, part: Part) -> Value:
        if isinstance(part, Literal):
            return part.text
        if isinstance(part, Unknown):
            return part
        if isinstance(part, Expansion):
            return self._expanded(part)
        value: Value = Unknown("only one pipeline inside $(...) is read", part.offset)
        if len(part.script) == 1 and isinstance(part.script[0], tuple):
            value = self._pipeline(part.script[0], part.offset)
        if isinstance(value, Spanned):
            return value.rstrip("\n")
        # The commands in it run all the same. Those inside of them have been seen by now.
        if not self._looks_inside:
            self._looks_inside, variables = True, dict(self.variables)
            found = list(self.calls(part.script, "$("))
            self._looks_inside, self.variables = False, variables
            self._substituted += found
        return value

    def _expanded(self, part: Expansion) -> Value:
        """A variable or parameter with its operator, as one text."""
        value = self._value(part)
        operator, place = part.operator, part.offset
        if not operator or part.operand is None:
            return value if value is not None else Unknown(_unset(part.name), place)
        if operator[-1] in "-=?+":
            empty = value is None or (operator[0] == ":" and value == Spanned())
            if isinstance(value, Spanned) and operator[0] == ":":
                empty = not value.text
            if operator[-1] == "?":
                return (
                    value if value is not None and not empty else Unknown(_unset(part.name), place)
                )
            wanted = empty if operator[-1] != "+" else not empty
            if not wanted:
                return Spanned() if operator[-1] == "+" or value is None else value
            default = self._text(part.operand)
            if operator[-1] == "=":
                self.variables[part.name] = default
            return default
        if value is None:
            return Unknown(_unset(part.name), place)
        if isinstance(value, Unknown):
            return value
        pattern = self._glob(part.operand)
        if len(self._counted(value).text) > MAX_EDITED:  # type: ignore[union-attr]
            return Unknown(
                f"`{operator}` of more than {MAX_EDITED} characters is not computed", place
            )
        if (
            pattern is None
            or pattern.count(".*") > 1
            or (operator[0] in "^," and part.operand.parts)
        ):
            return Unknown(f"`{operator}` with this pattern is not computed", place)
        return _edited(value, operator, pattern, self._text(part.by) if part.by else Spanned())

    def _value(self, part: Expansion) -> Value | None:
        """What it holds; None where the script does not set it."""
        if part.name in ("@", "*") or part.name.isdecimal():
            if self.parameters is None:
                return None
            if part.name in ("@", "*"):
                return _spaced(self.parameters)
            number = int(part.name)
            return self.parameters[number - 1] if 1 <= number <= len(self.parameters) else None
        if part.name == "HOME" and part.name not in self.variables:
            return Spanned("~", (part.offset,))
        value = self.variables.get(part.name)
        if isinstance(value, Unknown):
            return value
        if not isinstance(value, list):
            return value if part.index in (None, "0", "@", "*") else None
        if part.index in ("@", "*"):
            return _spaced(value)
        index = part.index or "0"
        held = Spanned(index) if index.isdecimal() else self.variables.get(index.lstrip("$"))
        if not isinstance(held, Spanned) or not re.fullmatch(r"[0-9]{1,6}", held.text):
            return Unknown(f"the index `{index}` is not computed", part.offset)
        number = int(held.text)
        return value[number] if number < len(value) else None

    def _glob(self, word: Word) -> str | None:
        """A pattern of ``*``, ``?`` and plain text as a regular expression."""
        out = ""
        for part in word.parts:
            value = self._part(part)
            if isinstance(value, Unknown) or isinstance(part, Unknown):
                return None
            if not isinstance(part, Literal) and not part.quoted:
                return None
            if isinstance(part, Literal) and not part.quoted:
                if any(c in value.text for c in "[(\\"):
                    return None
                for char in value.text:
                    out += {"*": ".*", "?": "."}.get(char, re.escape(char))
            else:
                out += re.escape(value.text)
        return out

    def _pipeline(self, pipeline: Pipeline, offset: int) -> Value:
        value: Value = Spanned()
        for command in pipeline:
            if command.stdin is not None:
                value = self._text(command.stdin)
            if isinstance(value, Unknown):
                return value
            value = self._counted(self._filter(command, value, offset))
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
        more = right.text if isinstance(right, Spanned) else right.tail
        return replace(left, tail=(left.tail if isinstance(right, Spanned) else "") + more)
    return right if isinstance(right, Unknown) else joined((left, right))


def _spaced(values: Sequence[Value]) -> Value:
    """The values as one text, as ``"$*"`` has them."""
    whole: Value = Spanned()
    for number, value in enumerate(values):
        if number:
            place = value.offset if isinstance(value, Unknown) else value.start
            whole = _plus(whole, Spanned(" ", (place,)))
        whole = _plus(whole, value)
    return whole


def _unset(name: str) -> str:
    if name.isdecimal() or name in "@*":
        return f"`${name}` is known only when it runs"
    return f"the script does not set ${name}"


def _edited(value: Spanned, operator: str, pattern: str, by: Value) -> Value:
    """``${x%pattern}`` and its like; ``pattern`` is a regular expression of ``.*`` and ``.``."""
    text, ends = value.text, range(len(value) + 1)
    if operator[0] in "^,":
        change = str.upper if operator[0] == "^" else str.lower
        head = len(text) if len(operator) == 2 else 1
        changed = change(text[:head]) + text[head:]
        return Spanned(changed, value.origin) if len(changed) == len(text) else value
    compiled = re.compile(pattern, re.DOTALL)
    if operator[0] == "#":
        order = ends if operator == "#" else reversed(ends)
        return value[next((n for n in order if compiled.fullmatch(text, 0, n)), 0) :]
    if operator[0] == "%":
        order = reversed(ends) if operator == "%" else ends
        return value[: next((n for n in order if compiled.fullmatch(text, n)), len(text))]
    if isinstance(by, Unknown):
        return by
    if not pattern:
        return value
    return value.replaced(compiled, by.text, 0 if operator == "//" else 1)


def _is(words: Sequence[Value], name: str) -> bool:
    return bool(words) and isinstance(words[0], Spanned) and words[0].text == name
