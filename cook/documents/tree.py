"""YAML text -> a tree of nodes that know their place, and places found by keys.

PyYAML's event stream is read directly (its composer loses tags and duplicate keys). Scalars
resolve by the YAML 1.2 core schema, so ``no`` and ``12:30`` are text and ``1e-3`` is a
number; keys are always text. Refused: duplicate keys, tags, merge keys, several documents.
Anchors work, within a limit on what they expand to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cook.errors import InputError, Problem, RecipeError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000
"""Nodes of a document with every alias written out: the bound on an anchor bomb."""

Scalar = None | bool | int | float | str

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]{1,40}")
_BASED_INT = re.compile(r"0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Location:
    """A place in a recipe; ``line`` and ``column`` count from 1, columns in characters."""

    file: str
    line: int
    column: int

    def problem(
        self,
        message: str,
        *,
        hint: str | None = None,
        severity: str = "error",
        kind: str = "recipe",
    ) -> Problem:
        return Problem(self.file, self.line, self.column, message, hint, severity, kind)


@dataclass(frozen=True, eq=False)
class ScalarNode:
    """``text`` is as written (escapes done); ``plain`` is false for quoted and block text."""

    at: Location
    value: Scalar
    text: str
    plain: bool
    size: int = 1


@dataclass(frozen=True, eq=False)
class SequenceNode:
    at: Location
    items: tuple[Node, ...]
    size: int


@dataclass(frozen=True, eq=False)
class MappingNode:
    """``keys`` hold the key nodes (for their places), ``values`` the value nodes, by key text."""

    at: Location
    keys: Mapping[str, ScalarNode]
    values: Mapping[str, Node]
    size: int


Node = ScalarNode | SequenceNode | MappingNode
Keys = tuple[str | int, ...]
"""A way through the document: keys and indexes from the root."""


@dataclass(frozen=True)
class Locations:
    """Finds places by keys and indexes: ``locations.at("quants", 0, "rules", 2)``."""

    file: str
    root: Node | None = None

    def at(self, *keys: str | int) -> Location:
        """The place of a value, or of the nearest thing around it that exists.

        A mapping or list stands where its key stands.
        """
        node, key = self.find(keys)
        if node is None:
            return Location(self.file, 1, 1)
        return key.at if key is not None and not isinstance(node, ScalarNode) else node.at

    def key_at(self, *keys: str | int) -> Location:
        """The place of a key itself."""
        node, key = self.find(keys)
        return key.at if key is not None else node.at if node else Location(self.file, 1, 1)

    def find(self, keys: Keys) -> tuple[Node | None, ScalarNode | None]:
        """The deepest node along ``keys``, and its key node.

        A single value may stand for a list of one, so an index into it is passed over. A rule
        is a pair: ``selector`` is its key, ``type`` its value.
        """
        node, key = self.root, None
        for used, part in enumerate(keys):
            in_rules = used > 1 and keys[used - 2] == "rules"
            if isinstance(node, SequenceNode):
                if not isinstance(part, int) or part >= len(node.items):
                    return node, key
                node, key = node.items[part], None
            elif isinstance(node, MappingNode) and part in node.values:
                key = node.keys[str(part)]
                node = node.values[key.text]
            elif part == 0:
                continue
            elif isinstance(node, MappingNode) and len(node.values) == 1 and in_rules:
                (pattern,) = node.keys.values()
                if part == "selector":
                    return pattern, None
                return (node.values[pattern.text], None) if part == "type" else (node, key)
            else:
                return node, key
        return node, key


def resolve_scalar(text: str) -> Scalar:
    """The value of a plain scalar by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if len(text) <= 60 and not text.isdigit() and _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def plain_data(node: Node) -> object:
    """The node as Python data: dicts, tuples (sequences) and scalars."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return tuple(plain_data(item) for item in node.items)
    return {key: plain_data(value) for key, value in node.values.items()}


def read_text(path: Path, error: type[RecipeError] = RecipeError) -> str:
    """Text of a file of ours; ``error`` for one too large, not UTF-8 or with control bytes.

    InputError where it cannot be read. ``error.what`` names the kind of file in messages, here
    and in :func:`parse`.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from None
    if len(raw) > MAX_BYTES:
        raise error([_top(str(path)).problem(f"larger than 1 MiB: not a {error.what}")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        before = raw[: fault.start].decode("utf-8", "replace")
        at = _place(str(path), before)
        hint = "save the file as UTF-8"
        raise error([at.problem(f"not UTF-8: byte 0x{raw[fault.start]:02x}", hint=hint)]) from None
    if bad := _UNPRINTABLE.search(text):
        at = _place(str(path), text[: bad.start()])
        raise error([at.problem(f"control character U+{ord(bad.group()):04X}")])
    return text


def parse(
    text: str, file: str, error: type[RecipeError] = RecipeError
) -> tuple[Node, tuple[Problem, ...]]:
    """The document in ``text``, and the faults that do not prevent reading on.

    ``error`` where the text cannot be read as one YAML document.
    """
    import yaml

    reader = _Reader(text, file, error)
    try:
        root = reader.document()
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        at = Location(file, mark.line + 1, mark.column + 1) if mark else _top(file)
        raise error([*reader.problems, _syntax_problem(at, fault)]) from None
    except yaml.YAMLError as fault:
        raise error([_top(file).problem(f"not YAML: {fault}")]) from None
    if root is None or (isinstance(root, ScalarNode) and root.value is None):
        example = (
            "`cook recipes show demo`" if error is RecipeError else "those that ship with cook"
        )
        hint = f"start with `version: 1`; see {example}"
        empty = _top(file).problem(f"the {error.what} is empty", hint=hint)
        raise error([*reader.problems, empty])
    return root, tuple(reader.problems)


def _top(file: str) -> Location:
    return Location(file, 1, 1)


def _place(file: str, before: str) -> Location:
    lines = re.split("\r\n|\r|\n", before)
    return Location(file, len(lines), len(lines[-1]) + 1)


def _syntax_problem(at: Location, error: yaml.MarkedYAMLError) -> Problem:
    message = error.problem or error.context or "cannot be read"
    hint = None
    if "'\\t'" in message:
        message, hint = "a tab where YAML allows only spaces", "indent with spaces"
    elif "mapping values are not allowed" in message:
        hint = "check the indentation, and quote text that contains `: `"
    elif "cannot start any token" in message:
        hint = "quote text that starts with a special character"
    elif error.context and error.problem:
        message = f"{error.problem} ({error.context})"
    return at.problem(f"not YAML: {message}", hint=hint)


class _Reader:
    """Makes nodes of PyYAML's events; no deeper than MAX_DEPTH, so that it may recurse."""

    def __init__(self, text: str, file: str, error: type[RecipeError]) -> None:
        import yaml

        self.yaml = yaml
        self.file = file
        self.error = error
        self.problems: list[Problem] = []
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, Node | None] = {}
        """None while the node is being read."""
        self._count = 0

    def document(self) -> Node | None:
        """The only document, None where there is none."""
        root: Node | None = None
        for event in self._events:
            if isinstance(event, self.yaml.DocumentStartEvent):
                if root is not None:
                    hint = f"one file holds one {self.error.what}: remove the `---`"
                    self._fail(self._at(event), "a second document", hint)
                root = self._node(next(self._events), 0)
        return root

    def _at(self, event: yaml.Event) -> Location:
        mark = event.start_mark
        return Location(self.file, mark.line + 1, mark.column + 1) if mark else _top(self.file)

    def _fail(self, at: Location, message: str, hint: str | None = None) -> NoReturn:
        raise self.error([*self.problems, at.problem(message, hint=hint)])

    def _counted(self, at: Location, nodes: int) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            self._fail(at, f"more than {MAX_NODES} values, counting each use of an anchor")

    def _node(self, event: yaml.Event, depth: int) -> Node:
        at = self._at(event)
        if isinstance(event, self.yaml.AliasEvent):
            anchor = event.anchor or ""
            if anchor not in self._anchors:
                self._fail(at, f"no anchor `&{anchor}` before this")
            if (known := self._anchors[anchor]) is None:
                self._fail(at, f"`*{anchor}` stands inside its own anchor")
            self._counted(at, known.size)
            return known
        assert isinstance(event, self.yaml.ScalarEvent | self.yaml.CollectionStartEvent)
        self._counted(at, 1)
        if event.tag is not None:
            hint = "write the value without a tag; quote it to make it text"
            self.problems.append(at.problem(f"tags are not allowed: {event.tag}", hint=hint))
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, self.yaml.ScalarEvent):
            plain = event.style is None
            value = resolve_scalar(event.value) if plain else event.value
            node: Node = ScalarNode(at, value, event.value, plain)
        elif depth >= MAX_DEPTH:
            self._fail(at, f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, self.yaml.SequenceStartEvent):
            items = []
            while not isinstance(inner := next(self._events), self.yaml.SequenceEndEvent):
                items.append(self._node(inner, depth + 1))
            node = SequenceNode(at, tuple(items), 1 + sum(item.size for item in items))
        else:
            node = self._mapping(at, depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _mapping(self, at: Location, depth: int) -> MappingNode:
        keys: dict[str, ScalarNode] = {}
        values: dict[str, Node] = {}
        size = 1
        while not isinstance(event := next(self._events), self.yaml.MappingEndEvent):
            name, value = self._node(event, depth), self._node(next(self._events), depth)
            size += name.size + value.size
            if (key := self._key(self._at(event), name, keys)) is not None:
                keys[key.text], values[key.text] = key, value
        return MappingNode(at, keys, values, size)

    def _key(self, at: Location, node: Node, known: Mapping[str, ScalarNode]) -> ScalarNode | None:
        if not isinstance(node, ScalarNode):
            self.problems.append(at.problem("a key must be plain text"))
            return None
        if node.plain and node.text == "<<":
            hint = "a quant inherits with `extends: NAME`"
            self.problems.append(at.problem("merge keys (`<<`) are not allowed", hint=hint))
            return None
        if first := known.get(node.text):
            message = f"duplicate key `{node.text}` (first on line {first.at.line})"
            self.problems.append(at.problem(message, hint="keep one of them"))
            return None
        return ScalarNode(at, node.text, node.text, node.plain)
