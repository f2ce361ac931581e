"""Option types that several commands share, and the output that they select.

A command takes ``json: JsonOption = False, quiet: QuietOption = False`` and starts with
``out = open_output(json, quiet)``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cook.output import Output

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout.", show_default=False)
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print the answer's rows only, tab-separated.", show_default=False
    ),
]


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


RecipeArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe file, or the name of a shipped recipe.",
        autocompletion=complete_recipe,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        autocompletion=complete_engine,
        help="bundled, a build directory, or NAME=DIRECTORY (ik=~/ik_llama.cpp/build).",
    ),
]
EnginesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        autocompletion=complete_engine,
        help="bundled, a build directory, or NAME=DIRECTORY; repeat it to sweep over several.",
    ),
]
RivalOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rival",
        metavar="TYPE[:KEY=N,...]",
        help="Draft-free speculation, such as ngram-mod; `all` the engine has; repeatable.",
    ),
]
DemoOption = Annotated[
    bool,
    typer.Option(
        "--demo",
        help="Use the demo's models, texts and prompts in place of the recipe's.",
        show_default=False,
    ),
]

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Warnings of the recipe are errors.", show_default=False)
]
UnsafeArgsOption = Annotated[
    bool,
    typer.Option(
        "--allow-unsafe-args",
        help="Pass raw flags (`extra`) that cook refuses: they may write, download, listen.",
        show_default=False,
    ),
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="Show all there is of each candidate: PPL, KLD, bpw, counts, notes.",
        show_default=False,
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        max=256,
        metavar="N",
        envvar="COOK_JOBS",
        help="Quantize N candidates side by side.",
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="tcp://HOST:PORT of a dask scheduler whose workers share COOK_HOME: they run all that "
        "is not timed.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        min=1,
        max=1024,
        metavar="N",
        envvar="COOK_THREADS",
        help="Threads of every engine program; absent: as the recipe says, else all cores.",
    ),
]

_current: Output | None = None


def open_output(json: bool = False, quiet: bool = False) -> Output:
    """The sink of this invocation, also used by the error boundary."""
    from cook.output import Mode, Output

    global _current
    mode = Mode.JSON if json else Mode.QUIET if quiet else Mode.HUMAN
    _current = Output(mode)
    return _current


def current_output(arguments: list[str]) -> Output:
    """The sink the command opened; for errors before that, one chosen from the arguments."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return _current or open_output("--json" in own, bool({"--quiet", "-q"} & set(own)))


def reset_output() -> None:
    """Forget the sink, so that one process can make several invocations (docs, tests)."""
    global _current
    _current = None
