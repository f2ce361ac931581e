"""What a script's variables hold and its commands are given, worked out without running it.

Commands run in order, once. Of programs only those of :mod:`cook.recipe.convert_filters` and
``read`` are known. Everything else is :class:`Unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cook.recipe.convert_filters import filtered
from cook.recipe.convert_syntax import (
    Command,
    Literal,
    Part,
    Pipeline,
    Script,
    Unknown,
    Variable,
    Word,
)
from cook.recipe.convert_text import Spanned, joined

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
            if pieces and value.text[0].isspace() and current is not None:
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

    def _filter(self, command: Command, given: Spanned, offset: int) -> Value:
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
