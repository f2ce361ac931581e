"""The user's configuration file: what would otherwise be typed, or set as ``COOK_*``, each time.

``$COOK_CONFIG``, else ``cook/config.toml`` in ``$XDG_CONFIG_HOME`` (``~/.config``). A flag wins
over the environment, the environment over the file. Everything in it is optional; whatever is
not known is an error, with file, line and column. Its reference is the docstrings of the fields.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from cook.documents.spec import Spec, TextLine, fault
from cook.errors import ConfigError, InputError
from cook.paths import config_file


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
    memory: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """GiB that quantizing may use; `COOK_MEMORY`."""
    engines: Annotated[dict[EngineName, TextLine], Field(max_length=64, default_factory=dict)]
    """Build directories by name, as `--engine NAME=DIR`; `COOK_ENGINE_<NAME>`."""


VARIABLES = {
    "home": "COOK_HOME",
    "threads": "COOK_THREADS",
    "jobs": "COOK_JOBS",
    "memory": "COOK_MEMORY",
}
"""The keys that stand for a variable of the environment."""
_applied: dict[str, str] = {}


@dataclass(frozen=True)
class Config:
    """What the file says; None and empty for what it does not."""

    path: Path
    home: Path | None = None
    threads: int | None = None
    jobs: int | None = None
    memory: float | None = None
    engines: Mapping[str, Path] | None = None


def load(path: Path | None = None) -> Config:
    """The configuration, empty where there is no file; ConfigError with every fault of it."""
    from cook.documents.located import toml_document
    from cook.documents.tree import read_text

    path = path or config_file()
    if not path.is_file():
        return Config(path)
    document = toml_document(read_text(path, ConfigError), path, ConfigError)
    spec = document.validated(ConfigSpec)
    if spec is None:
        raise document.fault()
    return Config(
        path=path,
        home=_directory(spec.home, path) if spec.home is not None else None,
        threads=spec.threads,
        jobs=spec.jobs,
        memory=spec.memory,
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


def memory_bytes() -> int | None:
    """Bytes that quantizing may use, where the user said; InputError for what is no number."""
    text = os.environ.get(VARIABLES["memory"])
    if not text:
        return None
    try:
        gib = float(text)
    except ValueError:
        gib = math.nan
    if not 0 < gib <= 1e6:
        raise InputError(f"COOK_MEMORY: {text[:60]!r} is no number of GiB above 0")
    return int(gib * 2**30)


def origin_of(name: str) -> str | None:
    """Where the value of a ``COOK_*`` variable comes from; None where it has none."""
    if not os.environ.get(name):
        return None
    return "configuration" if os.environ[name] == _applied.get(name) else "environment"


def _directory(value: str, path: Path) -> Path:
    """Relative to the file that says it."""
    given = Path(value).expanduser()
    return given if given.is_absolute() else path.resolve().parent / given
