"""Bash, read and never run: the words, assignments and pipelines of a script.

Enough of the grammar to know where a word ends and what is quoted: quotes, comments, line
continuations, variables, command substitution, here-documents, redirections. What is read but
not understood (arithmetic, arrays, ``${x%y}``) stays in the tree as :class:`Unknown` with its
reason, which matters only where that text is wanted.

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
    """Text that only running the script would tell, why, and where (an offset)."""

    reason: str
    offset: int


@dataclass(frozen=True)
class Literal:
    text: Spanned
    quoted: bool


@dataclass(frozen=True)
class Variable:
    name: str
    offset: int
    quoted: bool


@dataclass(frozen=True)
class Substitution:
    """``$(...)``."""

    script: Script
    offset: int
    quoted: bool


Part = Literal | Variable | Substitution | Unknown


@dataclass(frozen=True)
class Word:
    parts: tuple[Part, ...]
    offset: int


@dataclass(frozen=True)
class Assignment:
    """``name=value``, or ``name+=value``; ``value`` may be unknown as a whole (an array)."""

    name: str
    appends: bool
    value: Word
    offset: int


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command; ``inside`` is what makes it conditional (``if``, ``||``), if anything."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    stdin: Word | None
    inside: str | None


Pipeline = tuple[SimpleCommand, ...]
Script = tuple[Pipeline, ...]

MAX_DEPTH = 16
MAX_WORDS = 50_000

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>>|>\||[<>]&|&>>?|[<>])")
_BACKQUOTED = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_OPENING = {"if", "for", "while", "until", "case", "select", "{"}
_CLOSING = {"fi", "done", "esac", "}"}
_SKIPPED = {"then", "do", "else", "elif", "!", "time", "function"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}


def parse_script(source: ForeignText) -> Script:
    """The commands of ``source`` in order; RecipeError, with the place, where it is not bash."""
    return _ScriptReader(source).script(None, 0)


@dataclass
class _Draft:
    """A command while it is read."""

    assignments: list[Assignment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    stdin: Word | None = None
    declares: bool = False

    @property
    def empty(self) -> bool:
        return not (self.assignments or self.words or self.stdin)


class _ScriptReader:
    def __init__(self, source: ForeignText) -> None:
        self.source, self.text, self.at = source, source.text, 0
        self._words = 0
        # Where the line with `<<` ends, and where the text after its here-documents goes on.
        self._line_end, self._resume = -1, -1
        self._inside: list[str] = []

    def fail(self, message: str, offset: int, hint: str | None = None) -> RecipeError:
        return RecipeError([self.source.at(offset).problem(message, hint=hint)])

    def script(self, opened: int | None, depth: int) -> Script:
        """Commands up to the end, or to the ``)`` that closes what ``opened``."""
        if depth > MAX_DEPTH:
            raise self.fail(f"commands nested deeper than {MAX_DEPTH}", self.at)
        pipelines: list[Pipeline] = []
        commands: list[SimpleCommand] = []
        draft = _Draft()
        after: str | None = None  # the `&&` or `||` that what comes next depends on

        def end_command() -> None:
            nonlocal draft
            if not draft.empty:
                inside = self._inside[0] if self._inside else after
                commands.append(
                    SimpleCommand(tuple(draft.assignments), tuple(draft.words), draft.stdin, inside)
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
            elif redirection := _REDIRECTION.match(self.text, self.at):
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
                elif opened is not None and "case" not in self._inside:
                    return tuple(pipelines)
            elif char == "(":
                self.at += 1
                end_pipeline()
                self._inside.append("(")
            else:
                self._word_into(draft, depth)
        if opened is not None:
            raise self.fail("`$(` without `)`", opened)
        end_pipeline()
        return tuple(pipelines)

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
            value = self._array() if self._peek() == "(" else self._word(depth)
            draft.assignments.append(Assignment(found[1], bool(found[2]), value, start))
            return
        word = self._word(depth)
        if self.at == start:
            raise self.fail(f"cannot read `{self.text[start]}` here", start)
        bare = self.text[start : self.at]
        if not draft.words and not draft.assignments:
            if bare in _OPENING:
                self._inside.append(bare)
                if bare in ("for", "select"):
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
        draft.words.append(_unbraced(word))

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

    def _array(self) -> Word:
        start, deep = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self.at += 1
            elif char == "'":
                self._single()
                continue
            elif char == '"':
                self._double(0)
                continue
            deep += (char == "(") - (char == ")")
            self.at += 1
            if not deep:
                return Word((Unknown("arrays are not read", start),), start)
        raise self.fail("`(` without `)`", start)

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
        if found := _NAME.match(self.text, start + 1):
            self.at = found.end()
            return Variable(found[0], start, quoted)
        if self._peek(2)[1:] and self._peek(2)[1] in "0123456789@*#?$!-":
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
        body = self.text[start + 2 : self.at]
        self.at += 1
        if _NAME.fullmatch(body):
            return Variable(body, start, quoted)
        return Unknown(f"`${{{body[:40]}}}` is not computed", start)

    def _redirect(self, draft: _Draft, found: re.Match[str], depth: int) -> None:
        start = self.at
        operator = found[0].lstrip("0123456789")
        self.at = found.end()
        if operator in ("<", ">") and self._peek() == "(":
            raise self.fail("process substitution is not read", start)
        while self._peek() in (" ", "\t"):
            self.at += 1
        word = self._word(depth)
        if not word.parts:
            raise self.fail(f"`{operator}` without a word after it", start)
        if operator == "<<<":
            newline = Literal(Spanned("\n", (start,)), True)
            draft.stdin = Word((*word.parts, newline), word.offset)
        elif operator in ("<<", "<<-"):
            expands = not any(isinstance(p, Literal) and p.quoted for p in word.parts)
            name = joined(p.text for p in word.parts if isinstance(p, Literal)).text
            draft.stdin = self._here_document(name, expands, operator == "<<-")
        elif operator == "<":
            unknown = Unknown("what the file holds is not in the script", start)
            draft.stdin = Word((unknown,), start)

    def _here_document(self, name: str, expands: bool, tabs: bool) -> Word:
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
            reason = f"this here-document expands: write <<'{name}'"
            return Word((Unknown(reason, start),), start)
        return Word((Literal(body, True),), start)


def _unbraced(word: Word) -> Word:
    """``word``, unless bash makes several of it (``a{b,c}``)."""
    shape = "".join(
        p.text.text if isinstance(p, Literal) and not p.quoted else "-" for p in word.parts
    )
    if not _BRACES.search(shape):
        return word
    return Word((Unknown("braces that make several words are not read", word.offset),), word.offset)


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
