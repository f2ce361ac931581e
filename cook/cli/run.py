"""``cook run``."""

from __future__ import annotations

from typing import Annotated

import typer

from cook.cli.options import (
    DemoOption,
    EnginesOption,
    JsonOption,
    QuietOption,
    RecipeArgument,
    ThreadsOption,
    UnsafeArgsOption,
    open_output,
)


def command(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Key of the step, or what it alone begins with."),
    ],
    recipe: RecipeArgument,
    engine: EnginesOption = None,
    demo: DemoOption = False,
    threads: ThreadsOption = None,
    allow_unsafe_args: UnsafeArgsOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make one step of a recipe, whose inputs are stored; prints where its artifact is.

    For Slurm, GNU parallel, ssh or a CI matrix, on machines that share COOK_HOME: `cook plan
    RECIPE --commands` prints such a command for every step, and `cook build` finds what they made.

    Examples:

      cook plan recipes/demo.yaml --commands
      cook run 3f2a9c1e8b4d7a60 recipes/demo.yaml
      cook plan recipes/demo.yaml --commands | sh
    """
    output = open_output(json, quiet)
    from cook.build.one_step import LaidOut, run_step

    asked = LaidOut(recipe, tuple(engine or ()), demo, threads, allow_unsafe_args)
    run_step(key, asked, output)
