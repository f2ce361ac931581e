"""``cook doctor``: what cook needs of this machine, each fault with the line that mends it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cook import config, engine_setup, units
from cook.engines import discover
from cook.engines.base import Engine
from cook.engines.environment import SYSTEM_CONFIG
from cook.engines.process.outcome import Outcome
from cook.engines.process.supervisor import ask
from cook.errors import ConfigError, CookError
from cook.formats.quant_types import Flavour
from cook.output import Output
from cook.paths import cook_home, demo_dir, free_bytes, package_dir

LOW_DISK_BYTES = 20 << 30
DEMO_MODELS = ("target-q8_0.gguf", "draft-f16.gguf")


@dataclass(frozen=True)
class Check:
    """One finding. ``hint`` is the line that mends it; ``required`` faults stop the main job.

    ``note``: fine for most, absent for some.
    """

    name: str
    status: Literal["ok", "note", "warning", "missing"]
    detail: str
    hint: str | None = None
    required: bool = False

    @property
    def blocking(self) -> bool:
        return self.required and self.status == "missing"


def examine() -> Iterator[Check]:
    """Every check, in an order in which the earlier mend the later."""
    from cook.provenance import available_memory_bytes, machine

    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield _program("compiler", engine_setup.find_compiler(), "sudo apt install g++")
    yield _program("cmake", shutil.which("cmake"), "sudo apt install cmake")
    yield from _bundled()
    yield _configuration()
    yield from _other_engines()
    yield _disk()
    this, available = machine(), units.size(available_memory_bytes()) or "unknown"
    detail = f"{units.size(this.memory_bytes)}, {available} available; {this.cores} cores"
    if this.accelerators:
        detail += f"; {', '.join(this.accelerators)}"
    yield Check("machine", "ok", f"{this.processor}, {detail}")
    models = [demo_dir() / name for name in DEMO_MODELS]
    if absent := [path.name for path in models if not path.is_file()]:
        detail = f"{', '.join(absent)} not in {demo_dir()}"
        yield Check("demo models", "missing", detail, "reinstall cook, or clone it again")
    else:
        total = sum(path.stat().st_size for path in models)
        yield Check("demo models", "ok", f"{demo_dir()} ({units.size(total)})")


def mending_line() -> str:
    """What builds the bundled engine: make in a checkout, a module in an installed cook."""
    in_checkout = (package_dir().parent / "Makefile").is_file()
    return "make setup" if in_checkout else engine_setup.MENDING_LINE


def _program(name: str, path: str | None, hint: str) -> Check:
    if path is None:
        return Check(name, "missing", "not found (needed to build engines)", hint)
    result = ask(str(Path(path).absolute()), "--version")
    first = result.stdout_tail.strip().partition("\n")[0]
    if result.outcome is not Outcome.OK or not first:
        return Check(name, "missing", f"{path} does not start", hint)
    return Check(name, "ok", f"{first} ({path})")


def _bundled() -> Iterator[Check]:
    version = engine_setup.installed_version()
    faults = engine_setup.failures()
    for tool in engine_setup.TOOLS:
        name = f"llama-{tool}"
        fault = faults.get(name)
        if fault is None:
            yield Check(f"bundled {name}", "ok", "starts", required=True)
        else:
            yield Check(f"bundled {name}", "missing", fault, required=True)
    if faults:
        detail = f"llama-cpp-python {version or 'is not installed'}: tools missing or broken"
        yield Check("bundled engine", "missing", detail, mending_line(), required=True)
    else:
        label = "bundled engine"
        yield from _engine(label, _discovered(discover.BUNDLED), required=True)


def _discovered(name: str) -> Engine | CookError:
    """The engine, or why it cannot be used."""
    try:
        return discover.discover(name)
    except CookError as error:
        return error


def _engine(label: str, found: Engine | CookError, *, required: bool = False) -> Iterator[Check]:
    if isinstance(found, CookError):
        yield Check(label, "missing", found.message, found.hint, required=required)
        return
    types = len(found.facts.types)
    yield Check(label, "ok", f"{found.flavour} {found.identity.build}, {types} types")
    if found.facts.repack:
        yield Check(f"{label}: AMX", "ok", "no AMX trap")
    else:
        yield Check(
            f"{label}: AMX",
            "warning",
            "this CPU advertises AMX and refuses it; cook runs the tools with --no-repack (slower)",
            f"rebuild with CFLAGS and CXXFLAGS {' '.join(engine_setup.NO_AMX)}",
        )
    if found.flavour is Flavour.LLAMA_CPP and SYSTEM_CONFIG.exists():
        yield Check(
            f"{label}: {SYSTEM_CONFIG}",
            "warning",
            "changes what the engine's tools do; cook cannot stop it",
            f"move {SYSTEM_CONFIG} away, or use an engine of the other flavour",
        )


def _configuration() -> Check:
    """The file, and what is set by it or by the environment."""
    try:
        path = config.load().path
    except ConfigError as error:
        first, *rest = (str(problem).splitlines()[0] for problem in error.problems)
        more = f" (and {len(rest)} more)" if rest else ""
        return Check("configuration", "warning", first + more, "see docs/configuration.md")
    found = [str(path) if path.is_file() else f"no {path}"]
    for name in config.VARIABLES.values():
        if origin := config.origin_of(name):
            found.append(f"{name}={os.environ[name]} ({origin})")
    return Check("configuration", "ok", "; ".join(found))


def _other_engines() -> Iterator[Check]:
    try:
        names = tuple(discover.configured())
    except CookError:
        return  # reported by the check of the configuration
    found = {name: _discovered(name) for name in names}
    for name, engine in found.items():
        yield from _engine(f"engine {name}", engine)
    flavours = {e.flavour for e in found.values() if not isinstance(e, CookError)}
    if Flavour.IK_LLAMA_CPP not in flavours:
        yield Check(
            "ik_llama.cpp",
            "note",
            "none configured; types such as iq1_kt and iq4_ks need one",
            "export COOK_ENGINE_IK=~/ik_llama.cpp/build, or --engine ik=DIR",
        )


def _disk() -> Check:
    home = cook_home()
    free = free_bytes(home)
    detail = f"{home}: {units.size(free)} free"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe = home / ".write-test"
        probe.touch()
        probe.unlink()
    except OSError as error:
        hint = "set COOK_HOME to a directory of your own"
        return Check("COOK_HOME", "missing", f"{home}: {error.strerror}", hint, required=True)
    if free < LOW_DISK_BYTES:
        hint = "set COOK_HOME to a larger disk; real models need hundreds of GiB"
        return Check("COOK_HOME", "warning", detail, hint)
    return Check("COOK_HOME", "ok", detail)


def command(out: Output) -> None:
    """Check this machine; say what mends each fault.

    Exits 5 when the bundled engine, or another thing the main job needs, is unusable.

    Examples:
      cook doctor
      cook doctor --json | jq '.checks[] | select(.status != "ok")'
    """
    from cook import __version__
    from cook.errors import PrerequisiteError

    checks = tuple(examine())
    blocking = [check for check in checks if check.blocking]
    out.emit({"cook": __version__, "usable": not blocking, "checks": checks})
    out.table([(c.status, c.name, c.detail) for c in checks], ["status", "check", "finding"])
    for check in checks:
        if check.hint and check.status != "ok":
            out.say(f"hint: {check.name}: {check.hint}")
    if blocking:
        names = ", ".join(check.name for check in blocking)
        hint = next((check.hint for check in reversed(blocking) if check.hint), None)
        raise PrerequisiteError(f"not usable: {names}", hint=hint)
