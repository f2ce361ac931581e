"""A file of the user's as a checked model: YAML or TOML, every fault reported with its place.

pydantic's validation errors are said in a recipe's words, with a suggestion.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from cook.documents.tree import (
    Keys,
    Location,
    Locations,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    parse,
    plain_data,
)
from cook.errors import Problem, RecipeError
from cook.removed import removed_key

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)
_ELSEWHERE = {
    "revision": "write it in the source: hf://org/name@revision",
    "temp": "the key is `temperature`",
    "ngl": "the key is `n_gpu_layers`",
    "threads": "threads go into `args:`",
    "pure": "write `mixture: pure`",
    "ctx": "the key is `context`",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list (`- item` on each line, or [item, item])",
    "list_type": "a list (`- item` on each line, or [item, item])",
    "dict_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "model_attributes_type": "a mapping (`key: value`)",
}
_AT_END = " (at end of document)"
_PLACE = re.compile(r"^(.*) \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class LocatedDocument:
    """A mapping as it was read, and the faults of it that are known so far."""

    locations: Locations
    data: dict[str, Any]
    error: type[RecipeError]
    problems: list[Problem]

    @property
    def context(self) -> dict[str, Any]:
        """What the models' own checks may ask for: ``base`` anchors relative paths."""
        return {"base": Path(self.locations.file).resolve().parent}

    def validated(self, model: type[M]) -> M | None:
        """The document as ``model``; None, with the faults noted, where it is none."""
        try:
            return model.model_validate(self.data, context=self.context)
        except ValidationError as error:
            found = error.errors()
            self.problems.extend(_problem(details, self.locations, model) for details in found)
            return None

    def fault(self) -> RecipeError:
        """All faults as one error."""
        return self.error(tuple(dict.fromkeys(self.problems)))


def yaml_document(text: str, path: Path, error: type[RecipeError] = RecipeError) -> LocatedDocument:
    """The YAML mapping in ``text``; ``error`` where it cannot be read as one."""
    root, found = parse(text, str(path), error)
    locations = Locations(str(path), root)
    data = plain_data(root)
    if not isinstance(data, dict):
        message, hint = f"a {error.what} is a mapping", "start with `version: 1`"
        raise error([*found, locations.at().problem(message, hint=hint)])
    return LocatedDocument(locations, data, error, list(found))


def toml_document(text: str, path: Path, error: type[RecipeError]) -> LocatedDocument:
    """The TOML in ``text``; ``error`` where it is none."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as fault:
        message, line, column = str(fault), 1, 1
        if found := _PLACE.match(message):
            message, line, column = found[1], int(found[2]), int(found[3])
        elif message.endswith(_AT_END):
            message, line = message.removesuffix(_AT_END), text.count("\n") + 1
            column = len(text) - text.rfind("\n")
        at = Location(str(path), line, column)
        raise error([at.problem(f"not TOML: {message}")]) from None
    return LocatedDocument(Locations(str(path), _toml_tree(data, text, str(path))), data, error, [])


def _toml_tree(document: dict[str, Any], text: str, file: str) -> Node:
    """The document as nodes that know their place.

    tomllib has no places: a key is looked for at the start of a line, under its table's header.
    """
    # (line, column, column of the value) of a key or table.
    places: dict[tuple[str, ...], tuple[int, int, int]] = {(): (1, 1, 1)}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = tuple(part.strip().strip("\"'") for part in header[1].split("."))
            places.setdefault(table, (number, line.index("[") + 1, line.index("[") + 1))
        elif key := re.match(r"(\s*)([\w\"'.-]+)(\s*=\s*)", line):
            path = (*table, *(part.strip("\"'") for part in key[2].split(".")))
            places.setdefault(path, (number, len(key[1]) + 1, key.end() + 1))

    def place(path: tuple[str, ...]) -> tuple[int, int, int]:
        """Of a key, or of the nearest around it that has a place."""
        return places[path] if path in places else place(path[:-1])

    def node(value: Any, path: tuple[str, ...]) -> Node:
        line, column, after = place(path)
        if isinstance(value, dict):
            keys = {}
            for name in value:
                below = place((*path, name))
                keys[name] = ScalarNode(Location(file, below[0], below[1]), name, name, True)
            values = {name: node(v, (*path, name)) for name, v in value.items()}
            return MappingNode(Location(file, line, column), keys, values, len(value))
        if isinstance(value, list):
            items = tuple(node(item, path) for item in value)
            return SequenceNode(Location(file, line, after), items, len(items))
        plain = not isinstance(value, str)
        scalar = value if isinstance(value, (bool, int, float, str)) else str(value)
        return ScalarNode(Location(file, line, after), scalar, str(value), plain)

    return node(document, ())


def _problem(details: ErrorDetails, locations: Locations, model: type[BaseModel]) -> Problem:
    """A fault of a document that ``model`` was to describe, in a recipe's words."""
    kind, keys = details["type"], tuple(details["loc"])
    ctx: Mapping[str, Any] = details.get("ctx") or {}
    if kind == "missing":
        return locations.at(*keys[:-1]).problem(f"missing key `{keys[-1]}`")
    if kind == "extra_forbidden":
        hint, key, known = removed_key(keys), str(keys[-1]), _keys_at(model, keys[:-1])
        close = get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6)
        if hint is None and close:
            hint = f"did you mean `{close[0]}`?"
        elif hint is None:
            hint = _ELSEWHERE.get(key) or (f"known here: {', '.join(known)}" if known else None)
        return locations.key_at(*keys).problem(f"unknown key `{key}`", hint=hint)
    node, _ = locations.find(keys)
    at = locations.at(*keys)
    named = [key for key in keys if isinstance(key, str) and key != "[key]"]
    what = f"`{named[-1]}`" if named else "the recipe"
    if kind == "cook":
        shift = ctx["offset"]
        if shift and isinstance(node, ScalarNode):
            # Exact in plain text, which is all that patterns are written in.
            at = type(at)(at.file, at.line, at.column + shift + (0 if node.plain else 1))
        text = f"{what} {ctx['text']}" if ctx["text"].startswith("lists") else ctx["text"]
        return at.problem(text, hint=ctx["hint"])
    if kind == "literal_error":
        expected, text = ctx["expected"], node.text if isinstance(node, ScalarNode) else ""
        options = [option.strip("'") for option in expected.replace(" or ", ", ").split(", ")]
        close = get_close_matches(text, options, n=1)
        hint = f"; did you mean `{close[0]}`?" if close else ""
        return at.problem(f"{what} must be {expected.replace(chr(39), '`')}{hint}")
    if kind in _KINDS:
        return at.problem(f"{what} must be {_KINDS[kind]}", hint=_kind_hint(kind, node))
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return at.problem(f"{what} must be {words} {ctx[bound]:g}")
    if kind == "string_pattern_mismatch":
        hint = (
            "letters, digits and . _ + - only, at most 64"
            if keys[-1] in ("name", "extends")
            else None
        )
        return at.problem(f"{what} has characters that are not allowed", hint=hint)
    if kind in ("too_long", "string_too_long"):
        return at.problem(f"{what} is longer than {ctx['max_length']}")
    if kind in ("too_short", "string_too_short"):
        return at.problem(f"{what} is empty")
    return at.problem(f"{what}: {details['msg']}")


def _kind_hint(kind: str, node: Node | None) -> str | None:
    if not isinstance(node, ScalarNode):
        return None
    text = node.text
    if kind == "string_type" and not isinstance(node.value, str) and node.value is not None:
        return f'quote it: "{text}"'
    if kind == "bool_type" and text.lower() in ("yes", "on", "no", "off", "y", "n"):
        return f"write {'true' if text.lower() in ('yes', 'on', 'y') else 'false'}"
    if kind in ("int_type", "float_type"):
        if node.value == text and not node.plain and text.replace(".", "", 1).isdigit():
            return f"without quotes: {text}"
        if isinstance(node.value, str) and (digits := text.replace("_", "")).isdigit():
            return f"write {digits}"
        if isinstance(node.value, float) and node.value.is_integer():
            return f"write {int(node.value)}"
    return None


def _keys_at(model: type[BaseModel], keys: Keys) -> tuple[str, ...]:
    """The keys that are known where ``keys`` lead to; none where any key may stand."""
    current: object = model
    for part in keys:
        candidates = [
            m for m in _models(current) if isinstance(part, int) or part in m.model_fields
        ]
        if not candidates:
            return ()
        if isinstance(part, str):
            current = candidates[0].model_fields[part].annotation
    found = _models(current)
    return tuple(found[0].model_fields) if found else ()


def _models(annotation: object) -> list[type[BaseModel]]:
    """Every model inside an annotation such as ``tuple[X, ...] | None``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [m for arg in typing.get_args(annotation) for m in _models(arg)]
