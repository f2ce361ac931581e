"""Bash, read and never run: what a script's commands are given and what its variables hold.

One pass reads and computes. Commands are taken in order; loops over known words and functions are
gone through again for each value and call, both branches of a condition are read. A text that only
running the script would give is :class:`Unknown`, with its reason, which matters only where that
text is wanted.

Written by hand because tree-sitter-bash (0.25.1) reads `x=a\\` and `b` on the next line as an
assignment and a command, without a fault, and refuses an unquoted `weight$=q8_0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

from cook.errors import InputError, RecipeError
from cook.recipe.foreign.programs import printed
from cook.recipe.foreign.text import ForeignText, Spanned, Unknown, Value, joined

MAX_DEPTH = 32
"""Of commands and expansions inside one another, and functions that call one another."""
MAX_WORK = 1 << 25
"""Characters that all expansions may come to, where a word counts as 256 of them and a command as
1,024: the bound on loops and functions."""
MAX_EDITED = 1 << 14
"""Characters of a text that ``${x/...}`` and its like work on."""


class WordPart(NamedTuple):
    """A part of a word: plain text, or what an expansion gives; an array has ``elements``."""

    value: Value
    quoted: bool
    literal: bool = True
    elements: Sequence[Value] | None = None


@dataclass(frozen=True)
class Call:
    """A command as it is given: its words, program first; ``piped`` is the one before it in a
    pipeline, ``into`` the file that gets what it prints."""

    words: tuple[Value, ...]
    offset: int
    stdin: Value | None
    piped: Call | None
    into: str | None


@dataclass(frozen=True)
class Function:
    """``body`` is where its commands begin; ``calls`` are they where no parameter is known.
    ``certain``: no condition decides whether it is this one."""

    name: str
    source: ForeignText
    offset: int
    body: int
    calls: Sequence[Call]
    certain: bool


@dataclass
class _Command:
    """A command while it is read; ``environment`` are assignments in front of its words."""

    words: list[Value] = field(default_factory=list)
    offset: int = 0
    stdin: Value | None = None
    into: str | None = None
    replaced: dict[str, Value | list[Value] | None] = field(default_factory=dict)
    environment: dict[str, Value | list[Value]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.words or self.replaced or self.stdin)

    @property
    def assigns(self) -> bool:
        """Whether an assignment may come next."""
        return not self.words or self.words[0].known in _DECLARING


@dataclass
class _Pipeline:
    """A pipeline while it is read; ``surely``: it only assigns, which succeeds."""

    last: Call | None = None
    prints: Value = field(default_factory=Spanned)
    commands: int = 0
    surely: bool = True


_WORD_ENDS = " \t\n;|&()<>"
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\n]|\\\n|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*])", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=", re.ASCII)
_ARITHMETIC_CHANGE = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))",
    re.ASCII,
)
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|<>|>>|>\||[<>]&|&>>?|[<>])(?!\()")
_BACKQUOTED = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_LISTED = re.compile(r"[^{}]*\{([^{}]*,[^{}]*)\}[^{}]*")
_EXPANSION = re.compile(
    r"(!?[A-Za-z_]\w*|[0-9]+|[@*])(?:\[([@*]|\d{1,4}|\$?[A-Za-z_]\w*)\])?"
    r"(:?[-=+?]|%%?|##?|//?|\^\^?|,,?|(?=\}))",
    re.ASCII,
)
_FUNCTION = re.compile(
    r"(?:function[ \t]+([A-Za-z_][\w.-]*)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w.-]*)[ \t]*\([ \t]*\))"
    r"\s*\{(?=\s)",
    re.ASCII,
)
_FOR = re.compile(r"(?:for|select)[ \t]+([A-Za-z_]\w*)\s*(in(?=[\s;]))?", re.ASCII)
_WHILE = re.compile(r"(while|until)(?=[\s(!])|(for)[ \t]*(?=\(\()")
_END = re.compile(r"\|\||&&|;;|[\n;&)]")
_NO_WORDS = re.compile(r"\([ \t]*\)")
_SINGLE = re.compile(r"'[^']*'")
_DO = re.compile(r"[;\s]*do(?=\s)")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|do|done|case|esac|time|function|[{}!])(?=[\s;|&()<>]|\Z)"
)
_CLOSED_BY = {"if": "fi", "case": "esac", "{": "}"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_READING = {"read", "mapfile", "readarray"}
_CHANGING = {*_READING, "getopts", "unset"}


@lru_cache
def _run_of(ends: str) -> re.Pattern[str]:
    """Characters that mean themselves, quoted or not."""
    return re.compile(f"[^{re.escape(ends)}\\\\'\"$`]+")


class Shell:
    """Goes through scripts in this sense.

    ``calls`` are their commands in order, those of substitutions that are not computed among them.
    ``variables`` hold what was last assigned, a list for an array; ``functions`` has each function
    by its place, ``called`` the places of those that a command calls.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Value | list[Value]] = {}
        self.calls: list[Call] = []
        self.functions: dict[int, Function] = {}
        self.called: set[int] = set()
        self._functions: dict[str, Function] = {}
        # Of a function; None outside of one.
        self._parameters: list[Value] | None = None
        # What makes the next command conditional: `if`, `(`, `&&` ...
        self._inside: list[str] = []
        # Whether commands are only looked at: functions are not called, loops not repeated.
        self._looks = False
        self._depth = self._work = 0
        self._source = ForeignText("", "")
        self._text, self._at, self._end = "", 0, 0
        # Where the line with `<<` ends, and where the text after its here-documents goes on.
        self._line_end, self._resume = -1, -1

    def run(self, source: ForeignText, start: int = 0) -> None:
        """Takes the commands of ``source`` from ``start`` on.

        RecipeError, with the place, where it is not bash; InputError for a script that comes to
        too many commands or characters.
        """
        self._line_end, self._inside = -1, []
        self._source, self._text = source, source.text
        self._at, self._end = start, len(source.text)
        self._script(None)

    def _fail(self, message: str, offset: int) -> RecipeError:
        return RecipeError([self._source.at(offset).problem(message)])

    @contextmanager
    def _with(self, **state: object) -> Iterator[None]:
        """Has this state for a while."""
        before = {name: getattr(self, name) for name in state}
        self.__dict__.update(state)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : min(self._at + count, self._end)]

    def _take(self, end: int) -> Spanned:
        taken = Spanned(self._text[self._at : end], tuple(range(self._at, end)))
        self._at = end
        return taken

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self._text, self._at, self._end)

    def _next(self, blanks: re.Pattern[str] = _BLANKS) -> str:
        """The character behind blanks and comments; nothing at the end."""
        if found := self._match(blanks):
            self._at = found.end()
        return self._peek()

    # Commands.

    def _script(self, opened: int | None, until: str = "") -> Value:
        """Takes commands up to ``until``, which closes what ``opened``; what they print, where
        they are one pipeline."""
        if self._depth > MAX_DEPTH:
            raise self._fail(f"commands nested deeper than {MAX_DEPTH}", self._at)
        after: str | None = None  # the `&&` or `||` that what comes next depends on
        outside, pipelines = len(self._inside), list[_Pipeline]()
        with self._with(_depth=self._depth + 1):
            while True:
                pipeline, by = self._pipeline(after, until if until != ")" else "", outside)
                if pipeline.commands:
                    pipelines.append(pipeline)
                sure = by == "&&" and after is None and pipeline.commands and pipeline.surely
                if by != "\n" or pipeline.commands:
                    after = by if by in ("&&", "||") and not sure else None
                if by == ")" and self._inside[-1:] == ["("]:
                    self._inside.pop()
                elif by == until and (by != ")" or "case" not in self._inside):
                    break
                elif not by:
                    closed = "`$(` without `)`" if until == ")" else f"this has no `{until}`"
                    raise self._fail(closed, opened or 0)
        if len(pipelines) == 1:
            return pipelines[0].prints
        return Unknown("only one pipeline inside $(...) is read", opened or 0)

    def _pipeline(self, after: str | None, until: str, outside: int) -> tuple[_Pipeline, str]:
        """Takes one pipeline; with what ended it: a line end, an operator, ``)`` or ``until``."""
        pipeline, command, by = _Pipeline(), _Command(), ""
        inside = after
        while char := self._next():
            # Commands in `{ }` are no more conditional than those around it.
            inside = next((opening for opening in self._inside if opening != "{"), after)
            if found := self._match(_REDIRECTION):
                self._redirect(command, found)
            elif found := self._match(_END):
                by, self._at = found[0], found.end()
                if by == "\n" and found.start() == self._line_end:
                    self._at, self._line_end = self._resume, -1
                break
            elif char == "|":
                self._run(command, pipeline, inside)
                command = _Command()
                self._at += 2 if self._peek(2) == "|&" else 1
                self._next(_BLANKS_AND_LINES)
            elif char == "(":
                self._parenthesis(command)
            elif command.empty and self._compound(inside):
                pipeline.commands += 1
                pipeline.surely = False
                pipeline.last = self.calls[-1] if self.calls else None
                pipeline.prints = Unknown("only one pipeline inside $(...) is read", self._at)
            elif command.empty and (found := self._match(_RESERVED)):
                word, self._at = found[0], found.end()
                if word == until and len(self._inside) == outside:
                    by = word
                    break
                if word in _CLOSED_BY:
                    self._enter((word == "{" and inside) or word)
                elif word in _CLOSED_BY.values() and self._inside:
                    self._inside.pop()
            elif command.assigns and (found := self._match(_ASSIGNMENT)):
                self._assign(command, found, inside)
            else:
                self._word(command)
        self._run(command, pipeline, inside)
        return pipeline, by

    def _parenthesis(self, command: _Command) -> None:
        """A ``(`` where a word could begin: a subshell's, arithmetic, or behind words what a
        test, a pattern or a function's name has there."""
        start = self._at
        if command.empty and self._peek(2) == "((" and self._arithmetic(start):
            command.words.append(Unknown("arithmetic is not computed", start))
            return
        tests = command.words and "[[" in self._text[command.offset : start]
        if not (command.empty or tests or self._match(_NO_WORDS) or "case" in self._inside):
            raise self._fail("bash takes no `(` here: quote it", start)
        self._at += 1
        self._enter("(")

    def _enter(self, opening: str) -> None:
        """Notes what makes the commands from here on conditional."""
        if len(self._inside) > MAX_DEPTH:
            raise self._fail(f"commands nested deeper than {MAX_DEPTH}", self._at)
        self._inside.append(opening)

    def _word(self, command: _Command) -> None:
        """Adds the word that stands here."""
        if not command.words:
            command.offset = self._at
            # What is assigned in front of a command is not for its own words.
            command.environment = {name: self.variables[name] for name in command.replaced}
            self._restore(command.replaced)
            command.replaced = {}
        command.words += self._fields()

    def _assign(self, command: _Command, found: re.Match[str], inside: str | None) -> None:
        """``name=value``, ``name+=value``, ``name=(...)``."""
        name, element, appends = found.groups()
        self._at, start = found.end(), found.start()
        value: Value | list[Value]
        if self._peek() == "(":
            self._at += 1
            keyed = self._next(_BLANKS_AND_LINES) == "["
            value = self._list(")")
            self._close(")", found.end(), "`(` without `)`")
            if keyed:
                value = Unknown("arrays with keys are not computed", start)
        else:
            value = self._text_of(self._pieces(_WORD_ENDS))
        before = self.variables.get(name)
        if inside:
            value = Unknown(f"it is assigned inside `{inside}`", start, optional=True)
        elif element:
            value = Unknown("single elements of arrays are not computed", start)
        elif appends and before is not None:
            if isinstance(value, list):
                value = [*(before if isinstance(before, list) else [before]), *value]
            elif isinstance(before, list):
                value = Unknown("a text is added to an array", start)
            else:
                value = self._joined([before, value])
        command.replaced.setdefault(name, before)
        self.variables[name] = value

    def _redirect(self, command: _Command, found: re.Match[str]) -> None:
        start, operator = self._at, found[1]
        self._at = found.end()
        self._next()
        word = self._pieces(_WORD_ENDS)
        if not word:
            raise self._fail(f"`{operator}` without a word after it", start)
        if operator == "<<<":
            command.stdin = self._joined([self._text_of(word), Spanned("\n", (start,))])
        elif operator in ("<<", "<<-"):
            name = "".join(piece.value.known for piece in word)
            expands = not any(piece.quoted for piece in word)
            command.stdin = self._here_document(name, expands, operator == "<<-")
        elif operator in (">", ">>", ">|"):
            command.into = self._text_of(word).text
        elif operator == "<":
            command.stdin = Unknown("what the file holds is not in the script", start)

    def _here_document(self, name: str, expands: bool, tabs: bool) -> Value:
        """The text after this line (and after the here-documents that the line has already)."""
        after, line_end = self._at, self._text.find("\n", self._at, self._end)
        if line_end != self._line_end:
            self._line_end, self._resume = line_end, line_end + 1
        start = self._at = self._resume
        last_line = "^" + (r"\t*" if tabs else "") + re.escape(name) + "$"
        closing = re.compile(last_line, re.MULTILINE)
        closed = closing.search(self._text, start, self._end) if line_end >= 0 else None
        if closed is None:
            raise self._fail(f"the here-document does not end with {name}", after)
        body = self._take(closed.start())
        if tabs:
            body = body.replaced(re.compile(r"^\t+", re.MULTILINE), "")
        self._at, self._resume = after, min(closed.end() + 1, self._end)
        if not expands or not re.search(r"[$`]|\\[$`\\\n]", body.text):
            return self._counted(body)
        if tabs:
            reason = f"a here-document of <<- that expands is not computed: write <<'{name}'"
            return Unknown(reason, start)
        with self._with(_at=start, _end=start + len(body)):
            return self._text_of(self._pieces("", True))

    def _subshell(self, start: int) -> Value:
        """``$(...)``: what it prints, without what it assigns."""
        self._at += 2
        before, variables = len(self.calls), dict(self.variables)
        # What stands around it does not make its own commands conditional.
        with self._with(_inside=[], _parameters=self._parameters):
            value = self._script(start, ")")
        self.variables = variables
        if isinstance(value, Unknown):
            return value
        del self.calls[before:]
        return value.rstrip("\n")

    def _look(self, opened: int, until: str) -> tuple[list[Call], set[str]]:
        """The commands of a body and the variables that they change, without any effect."""
        before, variables = len(self.calls), dict(self.variables)
        with self._with(_looks=True, _functions=dict(self._functions)):
            self._script(opened, until)
        calls = self.calls[before:]
        del self.calls[before:]
        changed = {k for k, v in self.variables.items() if v is not variables.get(k)}
        self.variables = variables
        return calls, changed

    def _compound(self, inside: str | None) -> bool:
        """Whether a loop or a function began here; takes it."""
        start = self._at
        if found := self._match(_FUNCTION):
            self._at = found.end()
            with self._with(_inside=[], _parameters=None):
                calls, _ = self._look(start, "}")
            name, body = found[1] or found[2], found.end()
            function = Function(name, self._source, start, body, calls, inside is None)
            self._functions[function.name] = self.functions[start] = function
        elif found := self._match(_FOR):
            self._at = found.end()
            values = self._values(found)
            opening = self._match(_DO)
            if opening is None:
                raise self._fail(f"`{found[0].split()[0]}` without `do`", start)
            self._at = opening.end()
            with self._with(_inside=[*self._inside, *filter(None, [inside])]):
                self._for(found[1], values, start)
        elif found := self._match(_WHILE):
            self._at = found.end()
            with self._with(_inside=[*self._inside, *filter(None, [inside])]):
                changed = self._repeat(start)
            for name in changed:
                if not isinstance(self.variables.get(name), Unknown):
                    reason = f"it is assigned inside `{found[1] or found[2]}`"
                    self.variables[name] = Unknown(reason, start, optional=True)
        else:
            return False
        return True

    def _values(self, loop: re.Match[str]) -> list[Value]:
        """What the loop runs over: words, or the parameters."""
        name = loop[1]
        if loop[0].startswith("select"):
            self._list(";\n")
            return [Unknown("`select` asks for it", loop.start())]
        if not loop[2]:
            own = Unknown("the script's own arguments are known only when it runs", loop.start())
            return [own] if self._parameters is None else self._parameters
        begin = self._at
        values = self._list(";\n")
        if not set("'\"\\") & set(self._text[begin : self._at]):
            for number, value in enumerate(values):
                if isinstance(value, Spanned) and set("*?") & set(value.text):
                    reason = f"`for {name}` runs over the files `{value.text}`"
                    values[number] = Unknown(reason, value.start)
        return values

    def _for(self, name: str, values: Sequence[Value], start: int) -> None:
        body, prefix = self._at, f"`for {name}` runs over"
        if not values:
            self.variables[name] = Unknown(f"{prefix} it: it is empty", start)
            # What the loop holds is taken all the same.
            self.calls += self._look(start, "done")[0]
        for value in values[:1] if self._looks else values:
            self._at = body
            if isinstance(value, Unknown):
                reason = value.reason
                reason = reason if reason.startswith(prefix) else f"{prefix} it: {reason}"
                self.variables[name] = replace(value, reason=reason, optional=False)
                self._repeat(start, name)
            else:
                self.variables[name] = value
                self._script(start, "done")

    def _repeat(self, start: int, variable: str = "") -> set[str]:
        """Takes a body that runs an unknown number of times: what it changes, its ``variable``
        apart, is not known at its beginning. Returns the names of that."""
        body = self._at
        changed = set() if self._looks else self._look(start, "done")[1] - {variable}
        for name in changed:
            self.variables[name] = Unknown("it changes in the loop", start)
        self._at, self._line_end = body, -1
        self._script(start, "done")
        return changed

    def _run(self, command: _Command, pipeline: _Pipeline, inside: str | None) -> None:
        """Takes one command, the next of the pipeline."""
        if command.empty:
            return
        pipeline.commands += 1
        self._spend(1024)
        words, offset, alone = command.words, command.offset, pipeline.last is None
        stdin = pipeline.prints if command.stdin is None else command.stdin
        pipeline.prints = self._prints(words, stdin, offset)
        if command.assigns:
            return
        pipeline.surely = False
        name = words[0].known
        if (function := self._functions.get(name)) is not None:
            prints = self._call(function, command, inside)
            # What it reads is not handed on to its commands.
            pipeline.prints = prints if function.certain and not stdin else pipeline.prints
            return
        if name == "shift" and self._parameters is not None:
            count = words[1].known if words[1:] else "1"
            self._parameters = self._parameters[int(count) :] if count.isdecimal() else []
        elif name == "read" and command.stdin is not None and alone and words[1:]:
            *options, last = (word.known for word in words[1:])
            whole = options in (["-r", "-d", ""], ["-d", "", "-r"], ["-rd", ""])
            # `read` drops blanks at both ends.
            text = command.stdin.strip() if isinstance(command.stdin, Spanned) else command.stdin
            self.variables[last] = (
                text if whole else Unknown("only `read -r -d ''` is read", offset)
            )
        elif name == "let":
            self._forget_changes(" ".join(word.known for word in words), offset)
        elif name in _CHANGING or (name == "printf" and words[1:2] and words[1].known == "-v"):
            reason = "takes it from a pipe or a file" if name in _READING else "changes it"
            for word in words[1:]:
                if _NAME.fullmatch(word.known):
                    self.variables[word.known] = Unknown(f"`{name}` {reason}", offset)
        pipeline.last = Call(tuple(words), offset, command.stdin, pipeline.last, command.into)
        self.calls.append(pipeline.last)

    def _call(self, function: Function, command: _Command, inside: str | None) -> Value:
        if self._looks:
            return Unknown("functions are not called here", command.offset)
        self.called.add(function.offset)
        before = {name: self.variables.get(name) for name in command.environment}
        self.variables.update(command.environment)
        with self._with(
            _source=function.source,
            _text=function.source.text,
            _at=function.body,
            _end=len(function.source.text),
            _line_end=-1,
            _resume=-1,
            _inside=[inside] if inside else [],
            _parameters=command.words[1:],
        ):
            prints = self._script(function.offset, "}")
        self._restore(before)
        return prints

    def _restore(self, before: dict[str, Value | list[Value] | None]) -> None:
        for name, value in before.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def _prints(self, words: Sequence[Value], given: Value, offset: int) -> Value:
        for value in (given, *words):
            if isinstance(value, Unknown):
                return value
        known = [word for word in (given, *(words or [Spanned()])) if isinstance(word, Spanned)]
        text = printed(known[1].text, known[2:], known[0], offset)
        if text is not None:
            return self._counted(text)
        shown = " ".join(word.text for word in words)
        return Unknown(f"cook does not know what `{shown}` does", offset)

    # Words.

    def _list(self, ends: str) -> list[Value]:
        """Words up to one of ``ends``."""
        values: list[Value] = []
        blanks = _BLANKS_AND_LINES if ends == ")" else _BLANKS
        while (char := self._next(blanks)) and char not in ends:
            start = self._at
            values += self._fields()
            if self._at == start:
                raise self._fail(f"cannot read `{char}` here", start)
        return values

    def _fields(self) -> list[Value]:
        """The words that bash makes of the one that stands here: braces give several, what is
        expanded outside quotes splits at blanks, an array gives a word for each element."""
        start, fields = self._at, list[Value]()
        for word in self._unbraced(self._pieces(_WORD_ENDS), start):
            for ends, values in groupby(_split(word), lambda value: value is None):
                if not ends:
                    fields.append(self._joined([value for value in values if value is not None]))
        self._spend(256 * len(fields))
        return fields

    def _unbraced(self, pieces: list[WordPart], offset: int) -> list[list[WordPart]]:
        """The words that bash makes of ``a{b,c}``; an unknown one where they are more than that."""
        shape = "".join(
            value.text if literal and not quoted and isinstance(value, Spanned) else "-"
            for value, quoted, literal, _ in pieces
        )
        if not _BRACES.search(shape):
            return [pieces]
        text, found = pieces[0].value, _LISTED.fullmatch(shape)
        if found is None or len(pieces) > 1 or not isinstance(text, Spanned):
            reason = "braces that make several words are not read"
            return [[WordPart(Unknown(reason, offset), True)]]
        start, end = found.span(1)
        self._spend(found[1].count(",") * len(shape))
        words = (text[: start - 1] + one + text[end + 1 :] for one in text[start:end].split(","))
        return [[WordPart(word, False)] for word in words if word]

    def _joined(self, values: Sequence[Value]) -> Value:
        """The values as one text; what follows an unknown one is its tail."""
        if len(values) == 1:
            return self._counted(values[0])
        first = next((n for n, value in enumerate(values) if isinstance(value, Unknown)), None)
        if first is None:
            return self._counted(joined(v for v in values if isinstance(v, Spanned)))
        unknown, tail = values[first], ""
        assert isinstance(unknown, Unknown)
        for value in values[first:]:
            tail = tail + value.text if isinstance(value, Spanned) else value.text
        return self._counted(replace(unknown, text=tail, optional=False))

    def _counted(self, value: Value) -> Value:
        self._spend(len(value.text))
        return value

    def _spend(self, characters: int) -> None:
        self._work += characters
        if self._work > MAX_WORK:
            message = f"the script's loops and texts come to more than {MAX_WORK} characters"
            raise InputError(message)

    def _text_of(self, pieces: Sequence[WordPart]) -> Value:
        """The word as one text: no splitting at blanks."""
        values: list[Value] = []
        for piece in pieces:
            for number, element in enumerate(piece.elements or [piece.value]):
                values += [Spanned(" ", (element.start,))] if number else []
                values.append(element)
        return self._joined(values)

    def _pieces(self, ends: str, quoted: bool = False) -> list[WordPart]:
        """The parts of a word up to one of ``ends``; ``quoted``: as double quotes read them, or a
        here-document, which goes on to the end."""
        pieces: list[WordPart] = []
        if ends == _WORD_ENDS and self._peek(2) in ("<(", ">("):
            unknown = Unknown("process substitution is not computed", self._at)
            self._subshell(self._at)
            pieces.append(WordPart(unknown, True))
        escaped = '$`\\"' + ends if ends else "$`\\"
        while (char := self._peek()) and char not in ends:
            start = self._at
            if self._peek(2) == "\\\n":
                self._at += 2
            elif char == "\\" and (not quoted or self._peek(2)[1:] in [*escaped]):
                self._at += 1
                pieces.append(WordPart(self._take(min(self._at + 1, self._end)), True))
            elif char == '"' and ends:
                self._at += 1
                # Empty quotes are a word, too.
                pieces += self._pieces('"', True) or [WordPart(Spanned(), True)]
                self._close('"', start, '`"` without its other `"`')
            elif char in "$`":
                pieces.append(self._dollar(quoted))
            elif char == "'" and not quoted:
                pieces.append(WordPart(self._single(), True))
            elif char == "'" and ends == "}" and (found := self._match(_SINGLE)):
                pieces.append(WordPart(self._take(found.end()), True))
            else:
                found = self._match(_run_of(ends))
                pieces.append(WordPart(self._take(found.end() if found else start + 1), quoted))
        return pieces

    def _close(self, by: str, opened: int, message: str) -> None:
        if self._peek() != by:
            raise self._fail(message, opened)
        self._at += 1

    def _single(self) -> Spanned:
        found = self._match(_SINGLE)
        if found is None:
            raise self._fail("`'` without its other `'`", self._at)
        return self._take(found.end())[1:-1]

    def _dollar(self, quoted: bool) -> WordPart:
        """What an expansion, or a ``$`` that is itself, gives."""
        start, two = self._at, self._peek(2)
        if self._peek(3) == "$((":
            self._at += 1
            if not self._arithmetic(start):
                raise self._fail("`$((` without `))`", start)
            return WordPart(Unknown("arithmetic is not computed", start), quoted, False)
        if two == "$(":
            return WordPart(self._subshell(start), quoted, False)
        if two == "${":
            return self._braced(start, quoted)
        if two[0] == "`":
            closed = self._match(_BACKQUOTED)
            if not closed:
                raise self._fail("`` ` `` without its other", start)
            reason = "commands between backquotes are not read: write $(...)"
            if "quantize" in closed[0]:
                raise self._fail(reason, start)
            self._at = closed.end()
            return WordPart(Unknown(reason, start), quoted, False)
        if two == "$'" and not quoted:
            self._at += 1
            inner = self._single()
            if "\\" in inner.text:
                return WordPart(Unknown("$'...' with escapes is not read", start), True)
            return WordPart(inner, True)
        if found := self._match(_VARIABLE):
            self._at = found.end()
            value = self._value(found[1], None, start)
            return self._held(value, found[1], None, start, quoted)
        if two[1:] and two[1] in "#?$!-":
            self._at += 2
            return WordPart(Unknown(f"`{two}` is known only when it runs", start), quoted, False)
        return WordPart(self._take(start + 1), quoted)

    def _arithmetic(self, start: int) -> bool:
        """Takes ``((...))``, if it is that; what it assigns is not computed."""
        deep = 0
        for found in re.compile(r"[()]").finditer(self._text, self._at, self._end):
            deep += 1 if found[0] == "(" else -1
            if deep == 0:
                body = self._text[self._at : found.end()]
                if body.endswith("))"):
                    self._forget_changes(body, start)
                    self._at = found.end()
                return body.endswith("))")
        return False

    def _forget_changes(self, arithmetic: str, offset: int) -> None:
        for found in _ARITHMETIC_CHANGE.finditer(arithmetic):
            unknown = Unknown("arithmetic is not computed", offset)
            self.variables[found[1] or found[2]] = unknown

    def _braced(self, start: int, quoted: bool) -> WordPart:
        """``${...}``."""
        if self._depth > MAX_DEPTH:
            raise self._fail(f"expansions nested deeper than {MAX_DEPTH}", start)
        with self._with(_depth=self._depth + 1):
            self._at += 2
            found = self._match(_EXPANSION)
            if found and found[1][0] == "!" and (found[2] not in ("@", "*") or found[3]):
                found = None
            self._at = found.end() if found else self._at
            operator = found[3] if found else ""
            # Inside of double quotes a default is read as they are, a pattern is not.
            double = quoted and operator[-1:] not in [*"%#/^,"]
            first = list[WordPart]()
            if operator[:1] == "/" == self._peek():  # the pattern's first character
                first.append(WordPart(self._take(self._at + 1), True))
            operand = first + self._pieces("}/" if operator[:1] == "/" else "}", double)
            by = list[WordPart]()
            if operator[:1] == "/" and self._peek() == "/":
                self._at += 1
                by = self._pieces("}")
        body = self._text[start + 2 : min(start + 42, self._at)]
        self._close("}", start, "`${` without `}`")
        if found is None:
            return WordPart(Unknown(f"`${{{body}}}` is not computed", start), quoted, False)
        value = self._value(found[1], found[2], start)
        # An empty text is as good as none for `:-`, not for `-`.
        absent, kind = value is None or (operator[:1] == ":" and not value), operator[-1:]
        if kind in ("-", "=") and absent:
            value = self._text_of(operand)
            if kind == "=":
                self.variables[found[1]] = value
        elif kind == "+" and absent:
            value = Spanned()
        elif kind == "+" and not (isinstance(value, Unknown) and value.optional):
            value = self._text_of(operand)
        elif kind == "?" and absent:
            value = Unknown(_unset(found[1]), start)
        elif kind in [*"%#/^,"] and value is not None:
            edit = partial(self._edited, operator=operator, operand=operand, by=by, place=start)
            value = [*map(edit, value)] if isinstance(value, list) else edit(value)
        return self._held(value, found[1], found[2], start, quoted)

    def _held(
        self,
        value: Value | list[Value] | None,
        name: str,
        index: str | None,
        offset: int,
        quoted: bool,
    ) -> WordPart:
        """``value``, or None, of a variable or parameter as a part of a word."""
        if value is None:
            value = Unknown(_unset(name), offset, optional=name[0] not in "0123456789@*")
        if isinstance(value, list):
            piece = WordPart(Spanned(), quoted, False, value)
            one = quoted and "*" in (name, index)
            return WordPart(self._text_of([piece]), True) if one else piece
        if isinstance(value, Unknown) and quoted:
            value = replace(value, optional=False)
        return WordPart(value, quoted, False)

    def _value(self, name: str, index: str | None, offset: int) -> Value | list[Value] | None:
        """None where the script does not set it; a list for an array as a whole."""
        if name in ("@", "*"):
            return self._parameters
        if name.isdecimal():
            given, number = self._parameters or [], int(name) - 1
            return given[number] if 0 <= number < len(given) else None
        value = self.variables.get(name.lstrip("!"))
        if name[0] == "!":
            count = len(value) if isinstance(value, list) else 0
            if not count:
                return Unknown(f"the indices of `{name[1:]}` are not computed", offset)
            return [Spanned(str(n), (offset,) * len(str(n))) for n in range(count)]
        if name == "HOME" and value is None:
            return Spanned("~", (offset,))
        if not isinstance(value, list):
            return value if isinstance(value, Unknown) or index in (None, "0", *"@*") else None
        if index in ("@", "*"):
            return value
        index = index or "0"
        if not index.isdecimal():
            held = self.variables.get(index.lstrip("$"))
            if not isinstance(held, Spanned) or not re.fullmatch(r"[0-9]{1,6}", held.text):
                return Unknown(f"the index `{index}` is not computed", offset)
            index = held.text
        return value[int(index)] if int(index) < len(value) else None

    def _edited(
        self, value: Value, operator: str, operand: list[WordPart], by: list[WordPart], place: int
    ) -> Value:
        """``${x%pattern}`` and its like."""
        if isinstance(value, Unknown):
            return value
        if len(value) > MAX_EDITED:
            why = f"`{operator}` of more than {MAX_EDITED} characters is not computed"
            return Unknown(why, place)
        self._counted(value)
        pattern, text, ends = _glob(operand), value.text, range(len(value) + 1)
        wants_pattern = operator[0] not in "^,"
        if pattern is None or pattern.count(".*") > 1 or bool(pattern) != wants_pattern:
            return Unknown(f"`{operator}` with this pattern is not computed", place)
        if operator[0] in "^,":
            head = len(text) if len(operator) == 2 else 1
            change = str.upper if operator[0] == "^" else str.lower
            changed = change(text[:head]) + text[head:]
            return Spanned(changed, value.origin) if len(changed) == len(text) else value
        compiled = re.compile(pattern, re.DOTALL)
        if operator[0] == "#":
            order = ends if operator == "#" else reversed(ends)
            return value[next((n for n in order if compiled.fullmatch(text, 0, n)), 0) :]
        if operator[0] == "%":
            order = reversed(ends) if operator == "%" else ends
            return value[: next((n for n in order if compiled.fullmatch(text, n)), len(text))]
        new = self._text_of(by)
        if isinstance(new, Unknown):
            return new
        return value.replaced(compiled, new.text, 0 if operator == "//" else 1)


def _glob(pieces: Sequence[WordPart]) -> str | None:
    """A pattern of ``*``, ``?`` and plain text as a regular expression."""
    out = ""
    for value, quoted, literal, _ in pieces:
        if isinstance(value, Unknown) or not (quoted or literal):
            return None
        if quoted:
            out += re.escape(value.text)
        elif any(c in value.text for c in "[(\\"):
            return None
        else:
            out += "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in value.text)
    return out


def _split(pieces: Sequence[WordPart]) -> Iterator[Value | None]:
    """What the parts of a word give; None where a word ends."""
    for value, quoted, literal, elements in pieces:
        for number, element in enumerate([value] if elements is None else elements):
            if number:
                yield None
            if quoted or literal or isinstance(element, Unknown):
                yield element
                continue
            for before, text in enumerate(element.words()):
                if before or element.text[0].isspace():
                    yield None
                yield text
            if element.text[-1:].isspace():
                yield None


def _unset(name: str) -> str:
    if name.isdecimal() or name in "@*":
        return f"`${name}` is known only when it runs"
    return f"the script does not set ${name}"
