"""Bash, read and never run: what a script's commands are given and what its variables hold.

One pass reads and computes. Commands are taken in order; loops over known words and functions are
gone through again for each value and call, both branches of a condition are read. What only
running the script would give is an unknown text with its reason, which matters only where that
text is wanted.

Written by hand because tree-sitter-bash (0.25.1) reads `x=a\\` and `b` on the next line as an
assignment and a command, without a fault, and refuses an unquoted `weight$=q8_0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from cook.errors import InputError
from cook.recipe.foreign.programs import output
from cook.recipe.foreign.text import ForeignText, Spanned, joined

MAX_DEPTH = 32
"""Of commands, expansions, loops and calls of functions inside one another, where each that has
commands of its own counts twice."""
MAX_WORK = 1 << 25
"""Characters that all expansions may come to, where a word counts as 256 of them and a command as
1,024: the bound on loops and functions."""
MAX_EDITED = 1 << 14
"""Characters of a text that ``${x/...}`` and its like work on."""

Values = list[Spanned]
"""What a variable holds: one text, as many as an array has elements, or one unknown for either."""


class WordPart(NamedTuple):
    """A part of a word: a text, or each element of an array. ``literal``: it is not expanded."""

    values: Sequence[Spanned]
    quoted: bool
    literal: bool = True


@dataclass(eq=False)
class Call:
    """A command as it is given: its words, program first; ``piped`` is the one before it in a
    pipeline, ``into`` the file that gets what it ``prints``, None where it is no command at all.
    ``within`` is the function whose body it was read in, before any call of that.

    Assignments in front of the words are its ``environment``; they ``replaced`` what the variables
    held.
    """

    piped: Call | None = None
    words: list[Spanned] = field(default_factory=list)
    offset: int = 0
    stdin: Spanned | None = None
    into: str = ""
    prints: Spanned | None = None
    within: Function | None = None
    replaced: dict[str, Values | None] = field(default_factory=dict)
    environment: dict[str, Values | None] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.words or self.replaced or self.stdin)

    @property
    def assigns(self) -> bool:
        """Whether an assignment may come next."""
        return not self.words or self.words[0].known in _DECLARING


@dataclass(frozen=True)
class Function:
    """It is defined at ``offset``; ``body`` is where its commands begin. ``certain``: no condition
    decides whether it is this one."""

    name: str
    source: ForeignText
    offset: int
    body: int
    certain: bool


_WORD_ENDS = " \t\n;|&()<>"
_BLANKS = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\n]|\\\n|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=", re.ASCII)
_ARITHMETIC_CHANGE = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))",
    re.ASCII,
)
_ARITHMETIC = re.compile(r"\(\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)\)")
_REDIRECTION = re.compile(r"\d*(<<<|<<-?|<>|>>|>\||[<>]&|&>>?|[<>])(?!\()")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_ITSELF = r"[^{}\s;|&()<>\"'$`\\]*"
_LISTED = re.compile(rf"({_ITSELF})\{{({_ITSELF},{_ITSELF})\}}({_ITSELF})(?=[\s;|&()<>]|\Z)")
_EXPANSION = re.compile(
    r"(?P<name>![A-Za-z_]\w*(?=\[[@*]\]\})|[A-Za-z_]\w*|[0-9]+|[@*])"
    r"(?:\[(?P<index>[@*]|\d{1,4}|\$?[A-Za-z_]\w*)\])?"
    r"(?P<operator>:?[-=+?]|%%?|##?|//?|\^\^?|,,?|(?=\}))",
    re.ASCII,
)
_FUNCTION = re.compile(
    r"(?:function[ \t]+([A-Za-z_][\w.-]*)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w.-]*)[ \t]*\([ \t]*\))"
    r"\s*\{(?=\s)",
    re.ASCII,
)
_LOOP = re.compile(
    r"(?P<kind>for|select)[ \t]+(?P<name>[A-Za-z_]\w*)\s*(?P<words>in(?=[\s;]))?"
    r"|(?P<uncounted>(?:while|until)(?=[\s(!])|for(?=[ \t]*\(\())",
    re.ASCII,
)
_END = re.compile(r"\|\||&&|;;|[\n;&)]")
_NO_WORDS = re.compile(r"\([ \t]*\)")
_DO = re.compile(r"[;\s]*do(?=\s)")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|do|done|case|esac|time|function|[{}!])(?=[\s;|&()<>]|\Z)"
)
_CLOSED_BY = {"if": "fi", "case": "esac", "{": "}"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_READING = {"read", "mapfile", "readarray"}
_CHANGING = {*_READING, "getopts", "unset"}


@lru_cache
def _part(ends: str, quoted: bool) -> re.Pattern[str]:
    """What stands next in a word up to one of ``ends``, by the name of its kind."""
    escaped = re.escape(f'$`\\"{ends}' if ends else "$`\\")
    kinds = [
        r"(?P<nothing>\\\n)",
        rf"\\(?P<escaped>[{escaped}])" if quoted else r"\\(?P<escaped>.?)",
        r"(?P<double>\")" if ends else "",
        "" if quoted else r"'(?P<single>[^']*)'|\$(?P<ansi>'[^']*')",
        r"(?P<kept>'[^']*')" if quoted and ends == "}" else "",
        rf"\$(?P<arithmetic>{_ARITHMETIC.pattern})|\$\((?P<command>)|\$\{{(?P<braced>)",
        r"\$(?P<variable>[A-Za-z_]\w*|[0-9@*])|\$(?P<special>[#?$!-])",
        r"(?P<backquoted>`(?:\\.|[^`\\])*`)",
        rf"(?P<plain>[^{re.escape(ends)}\\'\"$`]+|.)",
    ]
    return re.compile("|".join(filter(None, kinds)), re.ASCII | re.DOTALL)


def _unknown(why: str, place: int, optional: bool = False) -> Spanned:
    return Spanned(unknown=why, place=place, optional=optional)


def _is_unknown(values: Values) -> bool:
    """Whether nothing of it is known, not even how many there are."""
    return len(values) == 1 and bool(values[0].unknown)


class Shell:
    """Goes through scripts in this sense.

    ``calls`` are their commands in order, those of substitutions that are not computed among them.
    ``variables`` hold what was last assigned; ``called`` are the places of the functions that a
    command calls.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Values | None] = {}
        self.calls: list[Call] = []
        self.called: set[int] = set()
        self._functions: dict[str, Function] = {}
        # Of a function; None outside of one.
        self._parameters: list[Spanned] | None = None
        # What makes the next command conditional: `if`, `(` ... around it, `&&` or `||` before it.
        self._inside: list[str] = []
        self._after = ""
        # Whether commands are only looked at: functions are not called, loops not repeated.
        self._looks = False
        self._depth = self._work = 0
        self._source = ForeignText("", "")
        self._text, self._at, self._end = "", 0, 0
        # Where a line with `<<` ends -> where the text after its here-documents goes on.
        self._behind: dict[int, int] = {}

    def run(self, source: ForeignText, start: int = 0) -> None:
        """Takes the commands of ``source`` from ``start`` on.

        RecipeError, with the place, where it is not bash; InputError for a script that comes to
        too many commands or characters.
        """
        self._inside, self._source, self._text = [], source, source.text
        self._at, self._end = start, len(source.text)
        self._script(0)

    @contextmanager
    def _with(self, **state: object) -> Iterator[None]:
        """Has this state for a while, one level deeper."""
        if self._depth > MAX_DEPTH:
            raise self._source.error(self._at, f"nested deeper than {MAX_DEPTH}")
        state["_depth"] = self._depth + 1
        before = {name: getattr(self, name) for name in state}
        self.__dict__.update(state)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : min(self._at + count, self._end)]

    def _span(self, start: int, end: int) -> Spanned:
        return Spanned(self._text[start:end], tuple(range(start, end)))

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        return pattern.match(self._text, self._at, self._end)

    def _next(self, blanks: re.Pattern[str] = _BLANKS) -> str:
        """The character behind blanks and comments; nothing at the end."""
        if found := self._match(blanks):
            self._at = found.end()
        return self._peek()

    def _close(self, by: str, opened: int, message: str) -> None:
        if self._peek() != by:
            raise self._source.error(opened, message)
        self._at += 1

    # Commands.

    @property
    def _condition(self) -> str:
        """What decides whether the next command runs; commands in `{ }` are no more conditional
        than those around it."""
        return next((opening for opening in self._inside if opening != "{"), self._after)

    def _script(self, opened: int, until: str = "") -> Spanned:
        """Takes commands up to ``until``, which closes what ``opened``; what they print, where
        they are one pipeline."""
        outside, prints = len(self._inside), list[Spanned]()
        with self._with(_after=""):
            while True:
                command, by = self._pipeline(until if until != ")" else "", outside)
                prints += [] if command.prints is None else [command.prints]
                if by != "\n" or command.prints is not None:
                    self._after = by if by in ("&&", "||") else ""
                if by == ")" and self._inside[-1:] == ["("]:
                    self._inside.pop()
                elif by == until and (by != ")" or "case" not in self._inside):
                    break
                elif not by:
                    closed = "`$(` without `)`" if until == ")" else f"this has no `{until}`"
                    raise self._source.error(opened, closed)
        if len(prints) == 1:
            return prints[0]
        return _unknown("only one pipeline inside $(...) is read", opened)

    def _pipeline(self, until: str, outside: int) -> tuple[Call, str]:
        """Takes one pipeline: its last command, and what ended it: a line end, an operator, ``)``
        or ``until``."""
        command, by = Call(), ""
        while char := self._next():
            if found := self._match(_REDIRECTION):
                self._redirect(command, found)
            elif found := self._match(_END):
                by, self._at = found[0], self._behind.pop(found.start(), found.end())
                # A pipeline goes on behind the line that its `|` ends.
                if by != "\n" or not (command.piped and command.empty and command.prints is None):
                    break
            elif char == "|":
                self._run(command)
                command = Call(piped=command)
                self._at += 2 if self._peek(2) == "|&" else 1
            elif char == "(":
                self._parenthesis(command)
            elif command.empty and self._compound():
                prints = _unknown("only one pipeline inside $(...) is read", self._at)
                command = Call(self.calls[-1] if self.calls else None, prints=prints)
            elif command.empty and (found := self._match(_RESERVED)):
                word, self._at = found[0], found.end()
                if word == until and len(self._inside) == outside:
                    by = word
                    break
                if word in _CLOSED_BY:
                    self._enter((word == "{" and self._condition) or word)
                elif word in _CLOSED_BY.values() and self._inside:
                    self._inside.pop()
            elif command.assigns and (found := self._match(_ASSIGNMENT)):
                self._assign(command, found)
            else:
                if not command.words:
                    command.offset = self._at
                    # What is assigned in front of a command is not for its own words.
                    command.environment = {name: self.variables[name] for name in command.replaced}
                    self.variables.update(command.replaced)
                    command.replaced = {}
                command.words += self._fields()
        self._run(command)
        return command, by

    def _parenthesis(self, command: Call) -> None:
        """A ``(`` where a word could begin: a subshell's, arithmetic, or behind words what a
        test, a pattern or a function's name has there."""
        start = self._at
        if command.empty and (found := self._match(_ARITHMETIC)):
            self._at = found.end()
            self._forget_changes(found[0], start)
            command.words.append(_unknown("arithmetic is not computed", start))
            return
        tests = command.words and "[[" in self._text[command.offset : start]
        if not (command.empty or tests or self._match(_NO_WORDS) or "case" in self._inside):
            raise self._source.error(start, "bash takes no `(` here: quote it")
        self._at += 1
        self._enter("(")

    def _enter(self, opening: str) -> None:
        """Notes what makes the commands from here on conditional."""
        if len(self._inside) > MAX_DEPTH:
            raise self._source.error(self._at, f"nested deeper than {MAX_DEPTH}")
        self._inside.append(opening)

    def _assign(self, command: Call, found: re.Match[str]) -> None:
        """``name=value``, ``name+=value``, ``name=(...)``."""
        name, element, appends = found.groups()
        self._at, start = found.end(), found.start()
        before = self.variables.get(name) or []
        if self._peek() == "(":
            self._at += 1
            keyed = self._next(_BLANKS_AND_LINES) == "["
            values = [*(before if appends else []), *self._list(")")]
            self._close(")", found.end(), "`(` without `)`")
            if keyed:
                values = [_unknown("arrays with keys are not computed", start)]
        else:
            text = self._text_of(self._pieces(_WORD_ENDS))
            values = [self._joined([*before[:1], text]), *before[1:]] if appends else [text]
        if element:
            values = [_unknown("single elements of arrays are not computed", start)]
        if self._condition:
            why = f"it is assigned inside `{self._condition}`"
            values = [_unknown(why, start, optional=True)]
        command.replaced.setdefault(name, self.variables.get(name))
        self.variables[name] = values

    def _redirect(self, command: Call, found: re.Match[str]) -> None:
        start, operator = self._at, found[1]
        self._at = found.end()
        self._next()
        word = self._pieces(_WORD_ENDS)
        text = self._text_of(word)
        if not word:
            raise self._source.error(start, f"`{operator}` without a word after it")
        if operator == "<<<":
            command.stdin = self._joined([text, Spanned("\n", (start,))])
        elif operator in ("<<", "<<-"):
            expands = not any(part.quoted for part in word)
            command.stdin = self._here_document(text.known, expands, operator == "<<-")
        elif operator in (">", ">>", ">|"):
            command.into = text.text
        elif operator == "<":
            command.stdin = _unknown("what the file holds is not in the script", start)

    def _here_document(self, name: str, expands: bool, tabs: bool) -> Spanned:
        """The text after this line (and after the here-documents that the line has already)."""
        after, line_end = self._at, self._text.find("\n", self._at, self._end)
        start = self._behind.get(line_end, line_end + 1)
        last_line = re.compile(("^\t*" if tabs else "^") + re.escape(name) + "$", re.MULTILINE)
        closed = last_line.search(self._text, start, self._end) if line_end >= 0 else None
        if closed is None:
            raise self._source.error(after, f"the here-document does not end with {name}")
        self._behind[line_end] = min(closed.end() + 1, self._end)
        body = self._span(start, closed.start())
        if expands and tabs and re.search(r"[$`]|\\[$`\\\n]", body.text):
            reason = f"a here-document of <<- that expands is not computed: write <<'{name}'"
            body = _unknown(reason, start)
        elif tabs:
            body = body.replaced(r"(?m)^\t+", "")
        elif expands:
            with self._with(_at=start, _end=closed.start()):
                body = self._text_of(self._pieces("", True))
        return self._counted(body)

    def _subshell(self, start: int) -> Spanned:
        """``$(...)``, behind its opening: what it prints, without what it assigns."""
        own = {"variables": dict(self.variables), "calls": [], "_parameters": self._parameters}
        # What stands around it does not make its own commands conditional.
        with self._with(**own, _inside=[]):
            value, calls = self._script(start, ")"), self.calls
        if value.unknown:
            self.calls += calls
            return value
        return value.rstrip("\n")

    def _look(self, opened: int, until: str) -> tuple[list[Call], set[str]]:
        """The commands of a body and the variables that it changes, without any effect."""
        before = self.variables
        own = {"variables": dict(before), "calls": [], "_functions": dict(self._functions)}
        with self._with(**own, _looks=True):
            self._script(opened, until)
            return self.calls, {k for k, v in self.variables.items() if v is not before.get(k)}

    def _compound(self) -> bool:
        """Whether a loop or a function began here; takes it."""
        start, inside = self._at, [*self._inside, self._condition or "{"]
        if found := self._match(_FUNCTION):
            self._at = found.end()
            with self._with(_inside=[], _parameters=None):
                calls, _ = self._look(start, "}")
            name, certain = found[1] or found[2], not self._condition
            function = Function(name, self._source, start, found.end(), certain)
            self._functions[name] = function
            self.calls += [replace(call, within=call.within or function) for call in calls]
        elif found := self._match(_LOOP):
            self._at = found.end()
            values = self._values(found)
            if found["kind"] and not self._match(_DO):
                raise self._source.error(start, f"`{found['kind']}` without `do`")
            with self._with(_inside=inside):
                self._loop(found["uncounted"] or "for", found["name"] or "", values, start)
        else:
            return False
        return True

    def _values(self, loop: re.Match[str]) -> list[Spanned]:
        """What the loop runs over: words or parameters, or one unknown value."""
        begin, start = self._at, loop.start()
        if loop["uncounted"]:
            return [_unknown("it runs until a condition holds", start)]
        if loop["kind"] == "for" and not loop["words"]:
            own = _unknown("the script's own arguments are known only when it runs", start)
            return [own] if self._parameters is None else self._parameters
        values = self._list(";\n")
        if loop["kind"] == "select":
            return [_unknown("`select` asks for it", start)]
        if not set("'\"\\") & set(self._text[begin : self._at]):
            for number, value in enumerate(values):
                if set("*?") & set(value.known):
                    reason = f"`for {loop['name']}` runs over the files `{value.text}`"
                    values[number] = _unknown(reason, value.start)
        return values

    def _loop(self, kind: str, name: str, values: Sequence[Spanned], start: int) -> None:
        """Takes the body once for each value. Where one is unknown so is how often it runs: what
        the body changes is known neither at its beginning nor behind it."""
        body, prefix = self._at, f"`for {name}` runs over"
        if not values:
            self.variables[name] = [_unknown(f"{prefix} it: it is empty", start)]
            # What the loop holds is taken all the same.
            self.calls += self._look(start, "done")[0]
        for value in values[:1] if self._looks else values:
            self._at = body
            if value.unknown and not value.unknown.startswith(prefix):
                value = replace(value, unknown=f"{prefix} it: {value.unknown}", optional=False)
            changed = set[str]()
            if value.unknown and not self._looks:
                changed = self._look(start, "done")[1] - {name}
                self._forget(changed, "it changes in the loop", start)
                self._at = body
            if name:
                self.variables[name] = [value]
            self._script(start, "done")
            assigned = [n for n in changed if not _is_unknown(self.variables.get(n) or [])]
            self._forget(assigned, f"it is assigned inside `{kind}`", start, optional=True)

    def _run(self, command: Call) -> None:
        """Takes one command, the next of its pipeline."""
        if command.empty:
            return
        self._spend(1024)
        words, offset, before = command.words, command.offset, command.piped
        given = command.stdin or (before and before.prints) or Spanned()
        prints = next((word for word in (given, *words) if word.unknown), None)
        if prints is None and words:
            prints = output(words[0].text, words[1:], given, offset)
        if prints is None:
            shown = " ".join(word.text for word in words)
            prints = _unknown(f"cook does not know what `{shown}` does", offset)
        command.prints = self._counted(prints)
        if command.assigns:
            return
        name = words[0].known
        if (function := self._functions.get(name)) is not None:
            prints = self._call(function, command)
            # What it reads is not handed on to its commands.
            command.prints = prints if function.certain and not given else command.prints
            return
        if name == "shift" and self._parameters is not None:
            count = words[1].known if words[1:] else "1"
            self._parameters = self._parameters[int(count) :] if count.isdecimal() else []
        elif name == "read" and command.stdin is not None and before is None and words[1:]:
            *options, last = (word.known for word in words[1:])
            whole = options in (["-r", "-d", ""], ["-d", "", "-r"], ["-rd", ""])
            # `read` drops blanks at both ends.
            text = command.stdin if command.stdin.unknown else command.stdin.strip()
            reason = "only `read -r -d ''` is read"
            self.variables[last] = [text if whole else _unknown(reason, offset)]
        elif name == "let":
            self._forget_changes(" ".join(word.known for word in words), offset)
        elif name in _CHANGING or (name == "printf" and words[1:2] and words[1].known == "-v"):
            reason = "takes it from a pipe or a file" if name in _READING else "changes it"
            names = [word.known for word in words[1:] if _NAME.fullmatch(word.known)]
            self._forget(names, f"`{name}` {reason}", offset)
        self.calls.append(command)

    def _call(self, function: Function, command: Call) -> Spanned:
        if self._looks:
            return _unknown("functions are not called here", command.offset)
        self.called.add(function.offset)
        before = {name: self.variables.get(name) for name in command.environment}
        self.variables.update(command.environment)
        with self._with(
            _source=function.source,
            _text=function.source.text,
            _at=function.body,
            _end=len(function.source.text),
            _inside=[self._condition or "{"],
            _parameters=command.words[1:],
        ):
            prints = self._script(function.offset, "}")
        self.variables.update(before)
        return prints

    # Words.

    def _list(self, ends: str) -> list[Spanned]:
        """Words up to one of ``ends``."""
        values: list[Spanned] = []
        blanks = _BLANKS_AND_LINES if ends == ")" else _BLANKS
        while (char := self._next(blanks)) and char not in ends:
            start = self._at
            values += self._fields()
            if self._at == start:
                raise self._source.error(start, f"cannot read `{char}` here")
        return values

    def _fields(self) -> list[Spanned]:
        """The words that bash makes of the one that stands here: a list in braces gives several,
        what is expanded outside quotes splits at blanks, an array gives a word for each element."""
        start, fields = self._at, list[Spanned]()
        if listed := self._match(_LISTED):
            self._at = listed.end()
            head, items, tail = (self._span(*listed.span(n)) for n in (1, 2, 3))
            self._spend(items.text.count(",") * len(listed[0]))
            made = (joined([head, item, tail]) for item in items.split(","))
            fields = [word for word in made if word]
        else:
            parts = self._pieces(_WORD_ENDS)
            plain = (v[0].text if literal and not quoted else "-" for v, quoted, literal in parts)
            if _BRACES.search("".join(plain)):
                return [_unknown("braces that make several words are not read", start)]
            for ends, values in groupby(_split(parts), lambda value: value is None):
                if not ends:
                    fields.append(self._joined([value for value in values if value is not None]))
        self._spend(256 * len(fields))
        return fields

    def _joined(self, values: Sequence[Spanned]) -> Spanned:
        return self._counted(joined(values))

    def _counted(self, value: Spanned) -> Spanned:
        self._spend(len(value))
        return value

    def _spend(self, characters: int) -> None:
        self._work += characters
        if self._work > MAX_WORK:
            message = f"the script's loops and texts come to more than {MAX_WORK} characters"
            raise InputError(message)

    def _text_of(self, parts: Sequence[WordPart]) -> Spanned:
        """The word as one text: no splitting at blanks."""
        texts: list[Spanned] = []
        for part in parts:
            for number, value in enumerate(part.values):
                texts += [Spanned(" ", (value.start,)), value] if number else [value]
        return self._joined(texts)

    def _pieces(self, ends: str, quoted: bool = False) -> list[WordPart]:
        """The parts of a word up to one of ``ends``; ``quoted``: as double quotes read them, or a
        here-document, which goes on to the end."""
        parts: list[WordPart] = []
        if ends == _WORD_ENDS and self._peek(2) in ("<(", ">("):
            unknown = _unknown("process substitution is not computed", self._at)
            self._at += 2
            self._subshell(unknown.place)
            parts.append(WordPart([unknown], True))
        part = _part(ends, quoted)
        while (char := self._peek()) and char not in ends and (found := self._match(part)):
            start, kind = self._at, found.lastgroup or ""
            self._at = found.end()
            if kind in ("escaped", "single", "kept"):
                parts.append(WordPart([self._span(*found.span(kind))], True))
            elif kind == "plain":
                if char == "`" or (char == "'" and not quoted):
                    quote = "`'`" if char == "'" else "a backquote"
                    raise self._source.error(start, f"{quote} without its other")
                parts.append(WordPart([self._span(start, self._at)], quoted))
            elif kind == "double":
                # Empty quotes are a word, too.
                parts += self._pieces('"', True) or [WordPart([Spanned()], True)]
                self._close('"', start, '`"` without its other')
            elif kind == "variable":
                values = self._values_of(found[kind], None, start)
                parts.append(self._expanded(values, found[kind], None, start, quoted))
            elif kind == "braced":
                parts.append(self._braced(start, quoted))
            elif kind != "nothing":
                parts.append(WordPart([self._substituted(kind, found)], quoted, False))
        return parts

    def _substituted(self, kind: str, found: re.Match[str]) -> Spanned:
        """What bash puts in the place of a ``$`` or backquote that is no variable's."""
        start = found.start()
        if kind == "command":
            return self._subshell(start)
        if kind == "arithmetic":
            self._forget_changes(found[0], start)
        reasons = {
            "arithmetic": "arithmetic is not computed",
            "special": f"`{found[0]}` is known only when it runs",
            "ansi": "$'...' is not read",
            "backquoted": "commands between backquotes are not read: write $(...)",
        }
        if kind == "backquoted" and "quantize" in found[0]:
            raise self._source.error(start, reasons[kind])
        return _unknown(reasons[kind], start)

    def _forget_changes(self, arithmetic: str, offset: int) -> None:
        changes = _ARITHMETIC_CHANGE.finditer(arithmetic)
        self._forget((c[1] or c[2] for c in changes), "arithmetic is not computed", offset)

    def _forget(self, names: Iterable[str], why: str, offset: int, optional: bool = False) -> None:
        self.variables.update({name: [_unknown(why, offset, optional)] for name in names})

    def _braced(self, start: int, quoted: bool) -> WordPart:
        """``${...}``."""
        with self._with():
            found = self._match(_EXPANSION)
            self._at = found.end() if found else self._at
            operator = (found and found["operator"]) or ""
            replaces, kind = operator[:1] == "/", operator[-1:]
            operand, by = list[WordPart](), list[WordPart]()
            if replaces and self._peek() == "/":  # the pattern's first character
                operand.append(WordPart([self._span(self._at, self._at + 1)], True))
                self._at += 1
            # Inside of double quotes a default is read as they are, a pattern is not.
            operand += self._pieces("}/" if replaces else "}", quoted and kind in [*"-=+?"])
            if replaces and self._peek() == "/":
                self._at += 1
                by = self._pieces("}")
        body = self._text[start + 2 : min(start + 42, self._at)]
        self._close("}", start, "`${` without `}`")
        if found is None:
            return WordPart([_unknown(f"`${{{body}}}` is not computed", start)], quoted, False)
        name, index = found["name"], found["index"]
        values = self._values_of(name, index, start)
        # An empty text is as good as none for `:-`, not for `-`.
        absent = values is None or (operator[:1] == ":" and not any(values))
        if kind == "+" and not (values and values[0].optional):
            values = [Spanned() if absent else self._text_of(operand)]
        elif kind in ("-", "=") and absent:
            values = [self._text_of(operand)]
            if kind == "=":
                self.variables[name] = values
        elif kind == "?" and absent:
            values = None
        elif kind in [*"%#/^,"] and values:
            values = [self._edited(value, operator, operand, by, start) for value in values]
        return self._expanded(values, name, index, start, quoted)

    def _expanded(
        self, values: Values | None, name: str, index: str | None, offset: int, quoted: bool
    ) -> WordPart:
        """What a variable or parameter gives as a part of a word."""
        if values is None and (name.isdecimal() or name in "@*"):
            values = [_unknown(f"`${name}` is known only when it runs", offset)]
        elif values is None:
            values = [_unknown(f"the script does not set ${name}", offset, optional=True)]
        if quoted:
            values = [replace(value, optional=False) for value in values]
        part = WordPart(values, quoted, False)
        one = quoted and "*" in (name, index)
        return WordPart([self._text_of([part])], True) if one else part

    def _values_of(self, name: str, index: str | None, offset: int) -> Values | None:
        """What a variable or parameter holds, all of it for an array as a whole; None where the
        script does not set it."""
        if name in ("@", "*"):
            return self._parameters
        if name.isdecimal():
            return (self._parameters or [])[int(name) - 1 : int(name)] or None
        values = self.variables.get(name.lstrip("!"))
        if name[0] == "!":
            if not values or _is_unknown(values):
                return [_unknown(f"the indices of `{name[1:]}` are not computed", offset)]
            return [Spanned(str(n), (offset,) * len(str(n))) for n in range(len(values))]
        if name == "HOME" and values is None:
            return [Spanned("~", (offset,))]
        if values is None or index in ("@", "*") or _is_unknown(values):
            return values
        number = index or "0"
        if not number.isdecimal():
            held = self.variables.get(number.lstrip("$"))
            number = held[0].known if held else ""
            if not re.fullmatch(r"[0-9]{1,6}", number):
                return [_unknown(f"the index `{index}` is not computed", offset)]
        return values[int(number) : int(number) + 1] or None

    def _edited(
        self,
        value: Spanned,
        operator: str,
        operand: Sequence[WordPart],
        by: Sequence[WordPart],
        place: int,
    ) -> Spanned:
        """``${x%pattern}`` and its like."""
        if value.unknown:
            return value
        text, pattern, longest = self._counted(value).text, _glob(operand), len(operator) == 2
        changes_case = operator[0] in "^,"
        unreadable = pattern is None or pattern.count(".*") > 1 or bool(pattern) == changes_case
        if pattern is None or unreadable or len(value) > MAX_EDITED:
            return _unknown(f"`{operator}` with this pattern is not computed", place)
        match operator[0]:
            case "#":
                shortest = pattern.replace(".*", ".*?")
                found = re.match(f"(?s){pattern if longest else shortest}", text)
                return value[found.end() :] if found else value
            case "%":
                found = re.fullmatch(f"(?s)({'.*?' if longest else '.*'}){pattern}", text)
                return value[: found.end(1)] if found else value
            case "/":
                new = self._text_of(by)
                everywhere = 0 if longest else 1
                return (
                    new if new.unknown else value.replaced(f"(?s){pattern}", new.text, everywhere)
                )
        head = text if longest else text[:1]
        changed = (head.upper() if operator[0] == "^" else head.lower()) + text[len(head) :]
        return Spanned(changed, value.origin) if len(changed) == len(text) else value


def _glob(parts: Sequence[WordPart]) -> str | None:
    """A pattern of ``*``, ``?`` and plain text as a regular expression."""
    out = ""
    for (value, *_), quoted, literal in parts:
        if value.unknown or not (quoted or literal):
            return None
        if quoted:
            out += re.escape(value.text)
        elif any(c in value.text for c in "[(\\"):
            return None
        else:
            out += "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in value.text)
    return out


def _split(parts: Sequence[WordPart]) -> Iterator[Spanned | None]:
    """What the parts of a word give; None where a word ends."""
    for values, quoted, literal in parts:
        for number, value in enumerate(values):
            if number:
                yield None
            if quoted or literal or value.unknown:
                yield value
                continue
            for before, text in enumerate(value.words()):
                if before or value.text[0].isspace():
                    yield None
                yield text
            if value.text[-1:].isspace():
                yield None
