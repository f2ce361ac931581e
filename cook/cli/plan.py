"""``cook plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from cook.cli.options import (
    DemoOption,
    EnginesOption,
    JsonOption,
    QuietOption,
    RecipeArgument,
    StrictOption,
    ThreadsOption,
    UnsafeArgsOption,
    open_output,
)


def command(
    recipe: RecipeArgument,
    engine: EnginesOption = None,
    demo: DemoOption = False,
    strict: StrictOption = False,
    threads: ThreadsOption = None,
    allow_unsafe_args: UnsafeArgsOption = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit 1 when anything would run.", show_default=False),
    ] = False,
    steps: Annotated[
        bool,
        typer.Option("--steps", help="List every step, and why it runs.", show_default=False),
    ] = False,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands",
            help="Print a command for every step, in an order in which they can run.",
            show_default=False,
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what a build would run, phase by phase: time, disk, memory, loads. Runs nothing.

    With --commands, sources are read whole (and fetched or converted, where they must be), since
    the keys of all steps depend on them.

    Examples:

      cook plan recipes/demo.yaml
      cook plan recipes/ling-flash-iq1kt.yaml --engine ik=~/ik_llama.cpp/build
      cook plan recipes/demo.yaml --check
      cook plan recipes/demo.yaml --commands | sh
    """
    output = open_output(json, quiet)
    if commands:
        from cook.build.one_step import LaidOut, show_commands
        from cook.errors import InputError

        if check or steps or strict:
            raise InputError("--commands goes without --check, --steps and --strict")
        asked = LaidOut(recipe, tuple(engine or ()), demo, threads, allow_unsafe_args)
        show_commands(asked, output)
        return
    from cook.build.plan import plan, show_plan
    from cook.build.prepare import prepare

    prepared = prepare(
        recipe,
        engines=engine or (),
        demo=demo,
        strict=strict,
        plan_only=True,
        threads=threads,
        unsafe_args=allow_unsafe_args,
    )
    planned = plan(prepared)
    show_plan(planned, output, steps=steps)
    if check and planned.stale:
        raise typer.Exit(1)
