"""Options that several commands share, short ways to declare others, and the output they select.

A command's first parameter is its ``out``; :func:`with_output` gives it ``--json`` and ``--quiet``
in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from cook.output import Mode, Output


def option(name: str, help: str, *short: str, default: Any = None, **settings: Any) -> Any:
    """An option with a value, as a parameter's default; ``default`` is its own, ... for none."""
    return typer.Option(default, name, *short, help=help, **settings)


def flag(name: str, help: str, *short: str) -> Any:
    """An option that is there or not, as a parameter's default."""
    return typer.Option(False, name, *short, help=help, show_default=False)


def argument(metavar: str, help: str, default: Any = ..., **settings: Any) -> Any:
    """What stands without a name, as a parameter's default; ``default`` is its own."""
    return typer.Argument(default, metavar=metavar, help=help, **settings)


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it: ``--json`` and ``--quiet`` stand for its parameter ``out``."""

    def run(
        json: bool = flag("--json", "Print one JSON document on stdout."),
        quiet: bool = flag("--quiet", "Print the answer's rows only, tab-separated.", "-q"),
        **options: Any,
    ) -> None:
        command(open_output(json, quiet), **options)

    ours = list(inspect.signature(run, eval_str=True).parameters.values())[:2]
    _, *theirs = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*theirs, *ours)]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _shipped(kind: str, incomplete: str) -> list[str]:
    """Names of shipped recipes or pipelines and files here that start with ``incomplete``."""
    from cook.paths import data_dir

    names = sorted(path.stem for path in data_dir(kind).glob("*.yaml"))
    folder, _, start = incomplete.rpartition("/")
    try:
        here = sorted(Path(f"{folder}/" if folder or incomplete[:1] == "/" else ".").iterdir())
    except OSError:
        here = []
    files = [
        f"{incomplete[: len(incomplete) - len(start)]}{path.name}{'/' if path.is_dir() else ''}"
        for path in here
        if path.suffix in (".yaml", ".yml") or (path.is_dir() and not path.name.startswith("."))
    ]
    # The shell prints what it is offered: a name with controls in it must be typed.
    offered = (name for name in (*names, *files) if name.isprintable())
    return [name for name in offered if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """What the shell offers for a recipe."""
    return _shipped("recipes", incomplete)


def complete_pipeline(incomplete: str) -> list[str]:
    """What the shell offers for a pipeline."""
    return _shipped("pipelines", incomplete)


def complete_engine(incomplete: str) -> list[str]:
    """What the shell offers for an engine: those that are configured."""
    from cook.engines.discover import BUNDLED, configured
    from cook.errors import CookError

    try:
        names = [BUNDLED, *configured()]
    except CookError:
        names = [BUNDLED]
    return [name for name in names if name.startswith(incomplete)]


RECIPE = argument(
    "RECIPE", "Recipe file, or the name of a shipped recipe.", autocompletion=complete_recipe
)
RECORD = argument(
    "[RECORD]",
    "Record file, or NAME or NAME@DATE of a recipe built here; absent: the last.",
    default=None,
)
ENGINE = option(
    "--engine",
    "bundled, a build directory, or NAME=DIRECTORY (ik=~/ik_llama.cpp/build).",
    metavar="ENGINE",
    autocompletion=complete_engine,
)
ENGINES = option(
    "--engine",
    "bundled, a build directory, or NAME=DIRECTORY; repeat it to sweep over several.",
    metavar="ENGINE",
    autocompletion=complete_engine,
)
RIVALS = option(
    "--rival",
    "N-gram method to compare with, such as ngram-mod, or `all`; repeatable.",
    metavar="TYPE[:KEY=N,...]",
)
MODEL = option("--model", "Which model, where the address is a router.", metavar="NAME")
LIMIT = option("--limit", "At most this many prompts.", min=1)
DEMO = flag("--demo", "Use the demo's models, texts and prompts in place of the recipe's.")
STRICT = flag("--strict", "Warnings of the recipe are errors.")
UNSAFE_ARGS = flag(
    "--allow-unsafe-args",
    "Pass raw flags (`extra`) that cook refuses: they may write, download, listen.",
)
WIDE = flag("--wide", "Show all there is of each candidate: PPL, KLD, bpw, counts, notes.")
FORCE = flag("--force", "Replace an output that exists.")
SCHEDULER = option(
    "--scheduler",
    "tcp://HOST:PORT of a dask scheduler whose workers share COOK_HOME: they run all that is "
    "not timed.",
    metavar="ADDRESS",
)
_COUNT: dict[str, Any] = {"metavar": "N", "min": 1}
JOBS = option(
    *("--jobs", "Quantize N candidates side by side.", "-j"),
    default=1,
    max=256,
    envvar="COOK_JOBS",
    **_COUNT,
)
THREADS = option(
    "--threads",
    "Threads of every engine program; absent: as the recipe says, else all cores.",
    "-t",
    max=1024,
    envvar="COOK_THREADS",
    **_COUNT,
)

_current: Output | None = None


def open_output(json: bool = False, quiet: bool = False) -> Output:
    """The sink of this invocation, also used by the error boundary."""
    global _current
    _current = Output(Mode.JSON if json else Mode.QUIET if quiet else Mode.HUMAN)
    return _current


def current_output(arguments: list[str]) -> Output:
    """The sink the command opened; for errors before that, one chosen from the arguments."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return _current or open_output("--json" in own, bool({"--quiet", "-q"} & set(own)))


def reset_output() -> None:
    """Forget the sink, so that one process can make several invocations (docs, tests)."""
    global _current
    _current = None
