"""``cook plan``."""

from __future__ import annotations

from pathlib import Path

import typer

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    recipe: Path = opt.RECIPE,
    engine: list[str] | None = opt.ENGINES,
    demo: bool = opt.DEMO,
    strict: bool = opt.STRICT,
    threads: int | None = opt.THREADS,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
    check: bool = opt.flag("--check", "Exit 1 when anything before live runs would run."),
    steps: bool = opt.flag("--steps", "List every step, and why it runs."),
    commands: bool = opt.flag(
        "--commands", "Print a command for every step, in an order in which they can run."
    ),
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
    if commands:
        from cook.errors import InputError
        from cook.job.one_step import RecipeArgs, show_commands

        if check or steps or strict:
            raise InputError("--commands goes without --check, --steps and --strict")
        asked = RecipeArgs(recipe, tuple(engine or ()), demo, threads, allow_unsafe_args)
        show_commands(asked, out)
        return
    from cook.job.plan import plan, show_plan
    from cook.job.prepare import prepare

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
    show_plan(planned, out, steps=steps)
    if check and planned.stale:
        raise typer.Exit(1)
