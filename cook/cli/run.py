"""``cook run``."""

from __future__ import annotations

from pathlib import Path

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    key: str = opt.argument("KEY", "Key of the step, or a unique beginning of it."),
    recipe: Path = opt.RECIPE,
    engine: list[str] | None = opt.ENGINES,
    demo: bool = opt.DEMO,
    threads: int | None = opt.THREADS,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
) -> None:
    """Make one step of a recipe, whose inputs are stored; prints where its artifact is.

    For Slurm, GNU parallel, ssh or a CI matrix, on machines that share COOK_HOME: `cook plan
    RECIPE --commands` prints such a command for every step, and `cook build` finds what they made.

    Examples:

      cook plan recipes/demo.yaml --commands
      cook run 3f2a9c1e8b4d7a60 recipes/demo.yaml
      cook plan recipes/demo.yaml --commands | sh
    """
    from cook.job.one_step import RecipeArgs, run_step

    run_step(key, RecipeArgs(recipe, tuple(engine or ()), demo, threads, allow_unsafe_args), out)
