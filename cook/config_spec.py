"""The configuration file as a model; field docstrings are its reference."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from cook.recipe.fields import Line, Spec, fault


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

    home: Line | None = None
    """Where cook keeps the store, records, history and logs; `COOK_HOME`."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of every engine program, as `--threads`; `COOK_THREADS`."""
    jobs: Annotated[int, Field(ge=1, le=256)] | None = None
    """Candidates quantized side by side, as `--jobs`; `COOK_JOBS`."""
    engines: Annotated[dict[EngineName, Line], Field(max_length=64, default_factory=dict)]
    """Build directories by name, as `--engine NAME=DIR`; `COOK_ENGINE_<NAME>`."""
