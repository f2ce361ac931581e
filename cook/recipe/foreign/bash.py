"""Bash, read and never run: the commands, loops, functions and assignments of a script.

Enough of the grammar to know where a word ends and what is quoted: quotes, comments, line
continuations, expansions, arrays, here-documents, redirections, `for` loops and functions. What is
read but not understood (arithmetic, process substitution) stays in the tree as :class:`Unknown`
with its reason, which matters only where that text is wanted.

Written by hand because tree-sitter-bash (0.25.1) reads `x=a\\` and `b` on the next line as an
assignment and a command, without a fault, and refuses an unquoted `weight$=q8_0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cook.errors import RecipeError
from cook.recipe.foreign.text import ForeignText, Spanned, joined


@dataclass(frozen=True)
class Unknown:
    """Text that only running the script would give, why, and where (an offset); ``tail`` is what
    follows it in the same word and is known (``/llama-quantize`` of ``$1/llama-quantize``)."""

    reason: str
    offset: int
    tail: str = ""


@dataclass(frozen=True)
class Literal:
    text: Spanned
    quoted: bool


@dataclass(frozen=True)
class Expansion:
    """``${name}`` of a variable or a parameter (``1``, ``@``), ``!name`` for an array's indices;
    ``index`` is ``@``, ``*``, a number or a variable for an array; ``operator`` (``:-``, ``%`` ...)
    with its ``operand``, and ``by`` what ``/`` puts in its place."""

    name: str
    offset: int
    quoted: bool
    index: str | None = None
    operator: str = ""
    operand: Word | None = None
    by: Word | None = None


@dataclass(frozen=True)
class Substitution:
    """``$(...)``."""

    script: Script
    offset: int
    quoted: bool


Part = Literal | Expansion | Substitution | Unknown


@dataclass(frozen=True)
class Word:
    parts: tuple[Part, ...]
    offset: int


@dataclass(frozen=True)
class Assignment:
    """``name=value``, or ``name+=value``; a tuple of words is an array's."""

    name: str
    appends: bool
    value: Word | tuple[Word, ...]
    offset: int


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command; ``inside`` is what makes it conditional (``if``, ``||``), if anything."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    stdin: Word | None
    inside: str | None
    writes: bool = False
    """Whether a file gets what it prints."""


@dataclass(frozen=True)
class Loop:
    """``for variable in words``; ``words`` is None where it runs over the parameters."""

    variable: str
    words: tuple[Word, ...] | None
    body: Script
    offset: int
    inside: str | None


@dataclass(frozen=True)
class Function:
    name: str
    body: Script
    offset: int


Pipeline = tuple[SimpleCommand, ...]
Statement = Pipeline | Loop | Function
Script = tuple[Statement, ...]

MAX_DEPTH = 16
MAX_WORDS = 50_000
MAX_BRACED = 1 << 16
"""Characters that one word with braces may come to."""

_CLOSED = re.compile(r"(?:done|\})(?=[\s;|&)<>]|\Z)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARAMETER = re.compile(r"[0-9@*]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>>|>\||[<>]&|&>>?|[<>])")
_BACKQUOTED = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_LISTED = re.compile(r"[^{}]*\{([^{}]*,[^{}]*)\}[^{}]*")
_EXPANSION = re.compile(
    r"(!?[A-Za-z_]\w*|[0-9]+|[@*])(?:\[([@*]|\d{1,4}|\$?[A-Za-z_]\w*)\])?(:?[-=+?]|%%?|##?|//?|\^\^?|,,?)?",
    re.ASCII,
)
_INDEXED = re.compile(r"([A-Za-z_]\w*)\[[^]\n]*\]\+?=", re.ASCII)
_FUNCTION = re.compile(
    r"(?:function[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*(\([ \t]*\))?\s*\{(?=\s)", re.ASCII
)
_FOR = re.compile(r"for[ \t]+([A-Za-z_]\w*)\s*(in(?=[\s;]))?", re.ASCII)
_OPENING = {"if", "for", "while", "until", "case", "select", "{"}
_CLOSING = {"fi", "done", "esac", "}"}
_SKIPPED = {"then", "do", "else", "elif", "!", "time", "function"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}


def parse_script(source: ForeignText, start: int = 0) -> Script:
    """The commands of ``source`` from ``start`` on; RecipeError, with the place, where it is not
    bash."""
    return _ScriptReader(source, start).script(None, 0)


@dataclass
class _Draft:
    """A command while it is read."""

    assignments: list[Assignment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    stdin: Word | None = None
    declares: bool = False
    writes: bool = False

    @property
    def empty(self) -> bool:
        return not (self.assignments or self.words or self.stdin)


class _ScriptReader:
    def __init__(self, source: ForeignText, start: int) -> None:
        self.source, self.text, self.at = source, source.text, start
        self._words = 0
        # Where the line with `<<` ends, and where the text after its here-documents goes on.
        self._line_end, self._resume = -1, -1
        self._inside: list[str] = []

    def fail(self, message: str, offset: int, hint: str | None = None) -> RecipeError:
        return RecipeError([self.source.at(offset).problem(message, hint=hint)])

    def script(self, opened: int | None, depth: int, until: str = ")") -> Script:
        """Commands up to the end, or to what closes what ``opened``: a ``)``, or the word
        ``until``."""
        if depth > MAX_DEPTH:
            raise self.fail(f"commands nested deeper than {MAX_DEPTH}", self.at)
        pipelines: list[Statement] = []
        outside = len(self._inside)
        commands: list[SimpleCommand] = []
        draft = _Draft()
        after: str | None = None  # the `&&` or `||` that what comes next depends on

        def end_command() -> None:
            nonlocal draft
            if not draft.empty:
                inside = self._inside[0] if self._inside else after
                commands.append(
                    SimpleCommand(
                        tuple(draft.assignments),
                        tuple(draft.words),
                        draft.stdin,
                        inside,
                        draft.writes,
                    )
                )
            draft = _Draft()

        def end_pipeline(by: str = "") -> None:
            nonlocal after
            end_command()
            # What is only assigned succeeds; an empty line after `&&` ends nothing.
            sure = by == "&&" and after is None and commands and not any(c.words for c in commands)
            if by != "\n" or commands:
                after = by if by in ("&&", "||") and not sure else None
            if commands:
                pipelines.append(tuple(commands))
                commands.clear()

        while self.at < len(self.text):
            char, two = self.text[self.at], self.text[self.at : self.at + 2]
            if char in " \t" or two == "\\\n":
                self.at += len(two) if two == "\\\n" else 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char == "\n":
                self.at = self._resume if self.at == self._line_end else self.at + 1
                end_pipeline("\n")
            elif two not in ("<(", ">(") and (
                redirection := _REDIRECTION.match(self.text, self.at)
            ):
                self._redirect(draft, redirection, depth)
            elif two in ("||", "&&", ";;") or char in ";&":
                self.at += 2 if two in ("||", "&&", ";;") else 1
                end_pipeline(two)
            elif char == "|":
                self.at += 2 if two == "|&" else 1
                end_command()
                self._skip_to_command()
            elif char == ")":
                self.at += 1
                end_pipeline()
                if self._inside[-1:] == ["("]:
                    self._inside.pop()
                elif opened is not None and until == ")" and "case" not in self._inside:
                    return tuple(pipelines)
            elif two in ("<(", ">("):
                draft.words.append(self._process(depth))
            elif char == "(":
                if not draft.empty and not self._may_open(draft):
                    raise self.fail("bash takes no `(` here: quote it", self.at)
                self.at += 1
                end_pipeline()
                self._inside.append("(")
            elif draft.empty and not draft.declares and (made := self._compound(depth, after)):
                end_pipeline()
                pipelines.append(made)
            elif (
                draft.empty
                and until != ")"
                and len(self._inside) == outside
                and _CLOSED.match(self.text, self.at, self.at + 5)
                and self._peek(len(until)) == until
            ):
                self.at += len(until)
                end_pipeline()
                return tuple(pipelines)
            else:
                self._word_into(draft, depth)
        if opened is not None:
            missing = "`$(` without `)`" if until == ")" else f"this has no `{until}`"
            raise self.fail(missing, opened)
        end_pipeline()
        return tuple(pipelines)

    def _may_open(self, draft: _Draft) -> bool:
        """Whether a ``(`` behind words is bash: a test's, a pattern's, or a function's ``()``."""
        tests = draft.words and "[[" in self.text[draft.words[0].offset : self.at]
        empty = re.compile(r"\([ \t]*\)").match(self.text, self.at)
        return bool(tests or empty or "case" in self._inside)

    def _process(self, depth: int) -> Word:
        """``<(...)`` or ``>(...)``."""
        start = self.at
        self.at += 2
        around, self._inside = self._inside, []
        self.script(start, depth + 1)
        self._inside = around
        return Word((Unknown("process substitution is not computed", start),), start)

    def _compound(self, depth: int, after: str | None) -> Loop | Function | None:
        """A loop or a function, where one begins here."""
        start, inside = self.at, self._inside[0] if self._inside else after
        if found := _FOR.match(self.text, start):
            self.at = found.end()
            words = self._loop_words(depth) if found[2] else None
            opening = re.compile(r"[;\s]*do(?=\s)").match(self.text, self.at)
            if opening is None:
                raise self.fail("`for` without `do`", start)
            self.at = opening.end()
            return Loop(found[1], words, self.script(start, depth + 1, "done"), start, inside)
        found = _FUNCTION.match(self.text, start)
        if found and (found[2] or found[0].startswith("function")) and found[1] != "function":
            self.at = found.end()
            around, self._inside = self._inside, []
            body = self.script(start, depth + 1, "}")
            self._inside = around
            return Function(found[1], body, start)
        return None

    def _loop_words(self, depth: int) -> tuple[Word, ...]:
        words: list[Word] = []
        while (char := self._peek()) not in (";", "\n", ""):
            if char in " \t" or self._peek(2) == "\\\n":
                self.at += 1 if char in " \t" else 2
                continue
            begin = self.at
            words += _unbraced(self._word(depth))
            if self.at == begin:
                raise self.fail(f"cannot read `{char}` here", begin)
        return tuple(words)

    def _skip_to_command(self) -> None:
        """A pipe goes on over the ends of lines."""
        while self.at < len(self.text) and self.text[self.at] in " \t\n":
            self.at += 1

    def _word_into(self, draft: _Draft, depth: int) -> None:
        self._words += 1
        if self._words > MAX_WORDS:
            raise self.fail(f"more than {MAX_WORDS} words", self.at)
        start = self.at
        found = _ASSIGNMENT.match(self.text, start)
        if found and (draft.declares or not draft.words):
            self.at = found.end()
            value = self._array(depth) if self._peek() == "(" else self._word(depth)
            draft.assignments.append(Assignment(found[1], bool(found[2]), value, start))
            return
        if not draft.words and (found := _INDEXED.match(self.text, start)):
            self.at = found.end()
            self._word(depth)
            unknown = Unknown("single elements of arrays are not computed", start)
            draft.assignments.append(Assignment(found[1], False, Word((unknown,), start), start))
            return
        word = self._word(depth)
        if self.at == start:
            raise self.fail(f"cannot read `{self.text[start]}` here", start)
        bare = self.text[start : self.at]
        if not draft.words and not draft.assignments:
            if bare in _OPENING:
                self._inside.append(bare)
                if bare in ("for", "select"):  # what is no `for NAME in WORDS`
                    self._loop_variable(draft)
                return
            if bare in _CLOSING:
                if self._inside:
                    self._inside.pop()
                return
            if bare in _SKIPPED:
                return
        if bare in _DECLARING and not draft.words:
            draft.declares = True
            return
        if draft.declares:
            return  # an option of `declare`, or a name without a value
        draft.words += _unbraced(word)

    def _loop_variable(self, draft: _Draft) -> None:
        while self._peek() in (" ", "\t"):
            self.at += 1
        if found := _NAME.match(self.text, self.at):
            unknown = Unknown("it is the variable of a loop", self.at)
            draft.assignments.append(
                Assignment(found[0], False, Word((unknown,), self.at), self.at)
            )
            self.at = found.end()

    def _peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def _array(self, depth: int) -> Word | tuple[Word, ...]:
        """The words between ``(`` and ``)``; one unknown word for an associative array."""
        start = self.at
        self.at += 1
        words: list[Word] = []
        keyed = False
        while (char := self._peek()) != ")":
            if not char:
                raise self.fail("`(` without `)`", start)
            if char in " \t\n":
                self.at += 1
            elif self._peek(2) == "\\\n":
                self.at += 2
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                begin, keyed = self.at, keyed or char == "["
                words += _unbraced(self._word(depth))
                if self.at == begin:
                    raise self.fail(f"cannot read `{char}` in an array", begin)
        self.at += 1
        if keyed:
            return Word((Unknown("arrays with keys are not computed", start),), start)
        return tuple(words)

    def _word(self, depth: int) -> Word:
        start, parts = self.at, list[Part]()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;|&()<>":
                break
            if char == "\\":
                if self._peek(2) == "\\\n":
                    self.at += 2
                    continue
                self.at += 1
                parts.append(Literal(self._take(1), True))
            elif char == "'":
                parts.append(Literal(self._single(), True))
            elif char == '"':
                parts += self._double(depth)
            elif char in "$`":
                parts.append(self._dollar(False, depth))
            else:
                parts.append(Literal(self._take(1), False))
        return Word(_merged(parts), start)

    def _take(self, count: int) -> Spanned:
        end = min(self.at + count, len(self.text))
        taken = Spanned(self.text[self.at : end], tuple(range(self.at, end)))
        self.at = end
        return taken

    def _single(self) -> Spanned:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.fail("`'` without its other `'`", self.at)
        self.at += 1
        inner = self._take(end - self.at)
        self.at += 1
        return inner

    def _double(self, depth: int) -> list[Part]:
        opened = self.at
        self.at += 1
        # Empty quotes are a word, too.
        parts: list[Part] = [Literal(Spanned(), True)]
        while self._peek() != '"':
            if not self._peek():
                raise self.fail('`"` without its other `"`', opened)
            parts.append(self._quoted_part(depth))
        self.at += 1
        return parts

    def _quoted_part(self, depth: int) -> Part:
        """One character or expansion as double quotes (and here-documents) read it."""
        two = self._peek(2)
        if two == "\\\n":
            self.at += 2
            return Literal(Spanned(), True)
        if two in ("\\$", "\\`", '\\"', "\\\\"):
            self.at += 1
            return Literal(self._take(1), True)
        if two[:1] in ("$", "`"):
            return self._dollar(True, depth)
        return Literal(self._take(1), True)

    def _dollar(self, quoted: bool, depth: int) -> Part:
        start = self.at
        if self._peek() == "`":
            closed = _BACKQUOTED.match(self.text, start)
            if not closed:
                raise self.fail("`` ` `` without its other", start)
            self.at = closed.end()
            return Unknown("commands between backquotes are not read; write $(...)", start)
        if self._peek(3) == "$((":
            return self._arithmetic(start)
        if self._peek(2) == "$(":
            self.at += 2
            # What stands around the substitution does not make its own commands conditional.
            around, self._inside = self._inside, []
            script = self.script(start, depth + 1)
            self._inside = around
            return Substitution(script, start, quoted)
        if self._peek(2) == "${":
            return self._braced(start, quoted, depth + 1)
        if self._peek(2) == "$'" and not quoted:
            self.at += 1
            inner = self._single()
            if "\\" in inner.text:
                return Unknown("$'...' with escapes is not read", start)
            return Literal(inner, True)
        found = _NAME.match(self.text, start + 1) or _PARAMETER.match(self.text, start + 1)
        if found:
            self.at = found.end()
            return Expansion(found[0], start, quoted)
        if self._peek(2)[1:] and self._peek(2)[1] in "#?$!-":
            self.at += 2
            return Unknown(f"`{self.text[start : start + 2]}` is known only when it runs", start)
        return Literal(self._take(1), quoted)

    def _arithmetic(self, start: int) -> Part:
        deep = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            deep += (char == "(") - (char == ")")
            self.at += 1
            if char == ")" and not deep:
                return Unknown("arithmetic is not computed", start)
        raise self.fail("`$((` without `))`", start)

    def _braced(self, start: int, quoted: bool, depth: int) -> Part:
        if depth > MAX_DEPTH:
            raise self.fail(f"expansions nested deeper than {MAX_DEPTH}", start)
        self.at += 2
        while (char := self._peek()) != "}":
            if not char:
                raise self.fail("`${` without `}`", start)
            if char == '"':
                self._double(depth)
            elif char == "'":
                self._single()
            elif char in "$`":
                self._dollar(quoted, depth)
            else:
                self.at += 2 if char == "\\" else 1
        end = self.at
        body = self.text[start + 2 : end]
        found = _EXPANSION.match(body)
        indirect = found and found[1][0] == "!" and (found[2] not in ("@", "*") or found[3])
        if found is None or indirect or (not found[3] and found.end() < len(body)):
            self.at = end + 1
            return Unknown(f"`${{{body[:40]}}}` is not computed", start)
        operand = by = None
        if found[3]:
            self.at = start + 2 + found.end()
            # Inside of double quotes a default is read as they are, a pattern is not.
            double = quoted and found[3][-1] in "-=+?"
            operand = self._operand(end, double, depth, found[3] in ("/", "//"))
            if self.at < end:
                self.at += 1
                by = self._operand(end, False, depth, False)
        self.at = end + 1
        return Expansion(found[1], start, quoted, found[2], found[3] or "", operand, by)

    def _operand(self, end: int, quoted: bool, depth: int, to_slash: bool) -> Word:
        start, parts = self.at, list[Part]()
        while self.at < end:
            char = self.text[self.at]
            if to_slash and char == "/" and self.at > start:
                break
            if char == '"':
                parts += self._double(depth)
            elif quoted:
                parts.append(self._quoted_part(depth))
            elif char == "'":
                parts.append(Literal(self._single(), True))
            elif char == "\\":
                self.at += 1
                parts.append(Literal(self._take(1), True))
            elif char in "$`":
                parts.append(self._dollar(False, depth))
            else:
                parts.append(Literal(self._take(1), False))
        return Word(_merged(parts), start)

    def _redirect(self, draft: _Draft, found: re.Match[str], depth: int) -> None:
        start = self.at
        operator = found[0].lstrip("0123456789")
        self.at = found.end()
        while self._peek() in (" ", "\t"):
            self.at += 1
        word = self._process(depth) if self._peek(2) in ("<(", ">(") else self._word(depth)
        if not word.parts:
            raise self.fail(f"`{operator}` without a word after it", start)
        if operator == "<<<":
            newline = Literal(Spanned("\n", (start,)), True)
            draft.stdin = Word((*word.parts, newline), word.offset)
        elif operator in ("<<", "<<-"):
            expands = not any(isinstance(p, Literal) and p.quoted for p in word.parts)
            name = joined(p.text for p in word.parts if isinstance(p, Literal)).text
            draft.stdin = self._here_document(name, expands, operator == "<<-", depth)
        elif operator in (">", ">>", ">|"):
            draft.writes = True
        elif operator == "<":
            unknown = Unknown("what the file holds is not in the script", start)
            draft.stdin = Word((unknown,), start)

    def _here_document(self, name: str, expands: bool, tabs: bool, depth: int) -> Word:
        """The text after this line (and after the here-documents that the line has already)."""
        after, line_end = self.at, self.text.find("\n", self.at)
        if line_end != self._line_end:
            self._line_end, self._resume = line_end, line_end + 1
        start = self.at = self._resume
        lines = list[Spanned]()
        while True:
            if line_end < 0 or self.at >= len(self.text):
                raise self.fail(f"the here-document does not end with {name}", after)
            end = self.text.find("\n", self.at)
            line = self._take((len(self.text) if end < 0 else end + 1) - self.at)
            if tabs:
                line = line[len(line.text) - len(line.text.lstrip("\t")) :]
            if line.text.rstrip("\n") == name:
                break
            lines.append(line)
        self.at, self._resume = after, self.at
        body = joined(lines)
        if expands and re.search(r"[$`]|\\[$`\\\n]", body.text):
            if tabs:
                reason = f"a here-document of <<- that expands is not computed: write <<'{name}'"
                return Word((Unknown(reason, start),), start)
            self.at, end, parts = start, start + len(body), list[Part]()
            while self.at < end:
                quote = self._peek(2) == '\\"'  # which is no escape here
                parts.append(Literal(self._take(2), True) if quote else self._quoted_part(depth))
            self.at = after
            return Word(_merged(parts), start)
        return Word((Literal(body, True),), start)


def _unbraced(word: Word) -> tuple[Word, ...]:
    """The words that bash makes of ``a{b,c}``; an unknown one where they are more than that."""
    shape = "".join(
        p.text.text if isinstance(p, Literal) and not p.quoted else "-" for p in word.parts
    )
    if not _BRACES.search(shape):
        return (word,)
    first, found = word.parts[0], _LISTED.fullmatch(shape)
    large = found is not None and found[1].count(",") * len(shape) > MAX_BRACED
    if found is None or large or len(word.parts) > 1 or not isinstance(first, Literal):
        unknown = Unknown("braces that make several words are not read", word.offset)
        return (Word((unknown,), word.offset),)
    start, end = found.span(1)
    head, tail = first.text[: start - 1], first.text[end + 1 :]
    return tuple(
        Word((Literal(head + piece + tail, False),), word.offset)
        for piece in first.text[start:end].split(",")
        if head.text or piece.text or tail.text
    )


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring literals of one quoting as one."""
    out: list[Part] = []
    run: list[Literal] = []

    def close() -> None:
        if run:
            out.append(Literal(joined(part.text for part in run), run[0].quoted))
            run.clear()

    for part in parts:
        if not isinstance(part, Literal):
            close()
            out.append(part)
            continue
        if run and run[0].quoted != part.quoted:
            close()
        run.append(part)
    close()
    return tuple(out)
