"""A file of the user's as a checked model: YAML or TOML, every fault reported with its place."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cook.documents.faults import problems_of
from cook.documents.tree import (
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

M = TypeVar("M", bound=BaseModel)
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
            self.problems.extend(problems_of(error, self.locations, model))
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
