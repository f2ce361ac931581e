"""The user's configuration file: what would otherwise be typed, or set as ``COOK_*``, each time.

``$COOK_CONFIG``, else ``cook/config.toml`` in ``$XDG_CONFIG_HOME`` (``~/.config``). A flag wins
over the environment, the environment over the file. Everything in it is optional; whatever is
not known is an error, with file, line and column.

The configuration file as a model; field docstrings are its reference.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from cook.documents.spec import Spec, TextLine, fault
from cook.errors import ConfigError
from cook.paths import config_file

if TYPE_CHECKING:
    from cook.documents.tree import Node


def _not_bundled(name: str) -> str:
    if name == "bundled":
        raise fault("`bundled` is cook's own engine", hint="give yours another name")
    return name


EngineName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]{0,39}$"),
    AfterValidator(_not_bundled),
]


class ConfigSpec(Spec):
    """The whole file."""

    home: TextLine | None = None
    """Where cook keeps the store, records, history and logs; `COOK_HOME`."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of every engine program, as `--threads`; `COOK_THREADS`."""
    jobs: Annotated[int, Field(ge=1, le=256)] | None = None
    """Candidates quantized side by side, as `--jobs`; `COOK_JOBS`."""
    engines: Annotated[dict[EngineName, TextLine], Field(max_length=64, default_factory=dict)]
    """Build directories by name, as `--engine NAME=DIR`; `COOK_ENGINE_<NAME>`."""


MAX_BYTES = 1 << 20
VARIABLES = {"home": "COOK_HOME", "threads": "COOK_THREADS", "jobs": "COOK_JOBS"}
"""The keys that stand for a variable of the environment."""
_applied: dict[str, str] = {}
_AT_END = " (at end of document)"
_PLACE = re.compile(r"^(.*) \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class Config:
    """What the file says; None and empty for what it does not."""

    path: Path
    home: Path | None = None
    threads: int | None = None
    jobs: int | None = None
    engines: Mapping[str, Path] | None = None


def load(path: Path | None = None) -> Config:
    """The configuration, empty where there is no file; ConfigError with every fault of it."""
    path = path or config_file()
    if not path.is_file():
        return Config(path)
    text = _text(path)
    document = _parsed(text, path)

    from pydantic import ValidationError

    from cook.documents.faults import problems_of
    from cook.documents.places import Locations

    try:
        spec = ConfigSpec.model_validate(document)
    except ValidationError as error:
        locations = Locations(str(path), _tree(document, text, str(path)))
        raise ConfigError(problems_of(error, locations, ConfigSpec)) from None
    return Config(
        path=path,
        home=_directory(spec.home, path) if spec.home is not None else None,
        threads=spec.threads,
        jobs=spec.jobs,
        engines={name: _directory(value, path) for name, value in spec.engines.items()},
    )


def apply() -> None:
    """Let the file stand in for the variables of :data:`VARIABLES` that are not set."""
    for name in list(_applied):
        if os.environ.get(name) == _applied.pop(name):
            del os.environ[name]
    if not config_file().is_file():
        return
    config = load()
    for key, name in VARIABLES.items():
        value = getattr(config, key)
        if value is not None and not os.environ.get(name):
            os.environ[name] = _applied[name] = str(value)


def source(name: str) -> str | None:
    """Where the value of a ``COOK_*`` variable comes from; None where it has none."""
    if not os.environ.get(name):
        return None
    return "configuration" if os.environ[name] == _applied.get(name) else "environment"


def _text(path: Path) -> str:
    from cook.documents.tree import Location

    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError([Location(str(path), 1, 1).problem("larger than 1 MiB")])
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError([Location(str(path), line, 1).problem("not UTF-8")]) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Location(str(path), 1, 1).problem(reason, kind="file")]) from None


def _parsed(text: str, path: Path) -> dict[str, Any]:
    from cook.documents.tree import Location

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        message, line, column = str(error), 1, 1
        if found := _PLACE.match(message):
            message, line, column = found[1], int(found[2]), int(found[3])
        elif message.endswith(_AT_END):
            message, line = message.removesuffix(_AT_END), text.count("\n") + 1
            column = len(text) - text.rfind("\n")
        at = Location(str(path), line, column)
        raise ConfigError([at.problem(f"not TOML: {message}")]) from None


def _directory(value: str, path: Path) -> Path:
    """Relative to the file that says it."""
    given = Path(value).expanduser()
    return given if given.is_absolute() else path.resolve().parent / given


def _tree(document: Mapping[str, Any], text: str, file: str) -> Node:
    """The document as nodes that know their place, for :mod:`cook.documents.faults`.

    tomllib tells no places: a key is looked for at the start of a line, under its table's header.
    """
    from cook.documents.tree import Location, MappingNode, ScalarNode, SequenceNode

    lines = text.splitlines()

    def place(path: tuple[str, ...]) -> tuple[int, int, int]:
        """(line, column, column of the value) of a key, or of what holds it."""
        table: tuple[str, ...] = ()
        for number, line in enumerate(lines, start=1):
            if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                table = tuple(part.strip().strip("\"'") for part in header[1].split("."))
                if table == path:
                    return number, line.index("[") + 1, line.index("[") + 1
            elif key := re.match(r"(\s*)([\w\"'.-]+)(\s*=\s*)", line):
                named = (*table, *(part.strip("\"'") for part in key[2].split(".")))
                if named == path:
                    return number, len(key[1]) + 1, key.end() + 1
        return place(path[:-1]) if path else (1, 1, 1)

    def node(value: Any, path: tuple[str, ...]) -> Node:
        line, column, after = place(path)
        if isinstance(value, dict):
            keys = {}
            for name in value:
                below = place((*path, name))
                at = Location(file, below[0], below[1])
                keys[name] = ScalarNode(at, name, name, True)
            values = {name: node(v, (*path, name)) for name, v in value.items()}
            return MappingNode(Location(file, line, column), keys, values, len(value))
        if isinstance(value, list):
            items = tuple(node(item, path) for item in value)
            return SequenceNode(Location(file, line, after), items, len(items))
        plain = not isinstance(value, str)
        scalar = value if isinstance(value, (bool, int, float, str)) else str(value)
        return ScalarNode(Location(file, line, after), scalar, str(value), plain)

    return node(document, ())
