"""From what a user calls an engine to an engine that runs.

``bundled`` is the llama.cpp that ``make setup`` builds with llama-cpp-python; others are build
directories, given as a path, as ``name=DIR``, by ``COOK_ENGINE_<NAME>`` or in the configuration
file (table ``[engines]``: ``ik = "~/ik_llama.cpp/build"``).
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from cook.config import load
from cook.engines.base import Engine
from cook.errors import CookError, InputError, PrerequisiteError
from cook.formats.quant_types import Flavour

BUNDLED = "bundled"
_PREFIX = "COOK_ENGINE_"


def discover(spec: str | None = None) -> Engine:
    """The engine that ``spec`` means.

    ``None``: bundled, or where its tools are absent the only engine that is configured.
    Otherwise ``bundled``, ``name=DIR``, a configured name, a flavour (``ik_llama.cpp``: the first
    configured engine of it, not a directory that is called so), or a directory. Raises
    PrerequisiteError (exit 5) for what is not there or cannot run, InputError for a broken
    configuration file.
    """
    if spec is None:
        try:
            return discover(BUNDLED)
        except PrerequisiteError as error:
            others = discover_all()
            if len(others) == 1:
                return others[0]
            if not others:
                raise
            names = ", ".join(engine.name for engine in others)
            hint = f"choose one: --engine {names}"
            raise PrerequisiteError(error.message, hint=hint) from None
    if "=" in spec:
        name, _, directory = spec.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,39}", name) or name == BUNDLED:
            raise InputError(f"{name!r} cannot name an engine", hint="letters, digits, . _ -")
        return engine_at(name, Path(directory))
    if spec == BUNDLED:
        return engine_at(BUNDLED, _bundled_dir())
    known = configured()
    if spec in known:
        return engine_at(spec, known[spec])
    if spec in tuple(Flavour):
        for engine in discover_all():
            if engine.flavour == spec:
                return engine
        short = "ik" if spec == Flavour.IK_LLAMA_CPP else "llama"
        mend = f"--engine {short}=DIR or {_PREFIX}{short.upper()}=DIR with a build of {spec}"
        if spec == Flavour.LLAMA_CPP:
            mend = f"`make setup` builds the bundled one; or {mend}"
        raise PrerequisiteError(f"no {spec} engine is at hand", hint=mend)
    path = Path(spec).expanduser()
    if os.sep in spec or path.is_dir():
        return engine_at(path.name or "engine", path)
    raise _unknown(spec)


def named(name: str) -> Engine:
    """The engine that a file calls ``name``: bundled, a flavour, or one of the configuration.

    Never a directory: a recipe or a record that came from a stranger would bring its own programs.
    InputError for what is none of them by its form, PrerequisiteError for one that is not at hand.
    """
    if name not in (BUNDLED, *configured(), *Flavour):
        if os.sep in name or "=" in name:
            raise InputError(
                f"{name!r} is no name of an engine: only you can say which directory's programs"
                " run",
                hint="--engine NAME=DIRECTORY",
            )
        raise _unknown(name)
    return discover(name)


def discover_all() -> tuple[Engine, ...]:
    """Every engine that is configured and runs, bundled first; broken ones are left out."""
    found: list[Engine] = []
    for name in (BUNDLED, *configured()):
        with contextlib.suppress(CookError):
            found.append(discover(name))
    return tuple(found)


def configured() -> dict[str, Path]:
    """Engines by name: the configuration file's, overridden by ``COOK_ENGINE_<NAME>``."""
    engines = dict(load().engines or {})
    for key in sorted(os.environ):
        if key.startswith(_PREFIX) and os.environ[key].strip():
            name = key.removeprefix(_PREFIX).lower().replace("_", "-")
            if name and name != BUNDLED:
                engines[name] = Path(os.environ[key]).expanduser()
    return engines


def engine_at(name: str, directory: Path) -> Engine:
    """The engine whose tools lie in ``directory``, whatever the directory is called."""
    from cook.engines.facts import facts_of
    from cook.engines.ik_llama_cpp import IkLlamaCpp
    from cook.engines.llama_cpp import LlamaCpp

    try:
        facts = facts_of(directory)
    except PrerequisiteError as error:
        if name == BUNDLED and "make setup" not in (error.hint or ""):
            raise PrerequisiteError(error.message, hint="`make setup` builds it") from None
        raise
    return (IkLlamaCpp if facts.flavour is Flavour.IK_LLAMA_CPP else LlamaCpp)(name, facts)


def _bundled_dir() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise PrerequisiteError("llama-cpp-python is not installed", hint="`make setup` builds it")
    directory = Path(spec.origin).parent.parent / "bin"
    if not (directory / "llama-quantize").exists():
        raise PrerequisiteError(
            f"llama-cpp-python was installed without its command-line tools (none in {directory})",
            hint="`make setup` builds them (3 to 8 minutes, once)",
        )
    return directory


def _unknown(spec: str) -> PrerequisiteError:
    names = ", ".join([BUNDLED, *configured()])
    variable = spec.upper().replace("-", "_")
    return PrerequisiteError(
        f"no engine is called {spec!r} (known: {names})",
        hint=f"name its build directory: --engine {spec}=DIR, or {_PREFIX}{variable}=DIR",
    )
