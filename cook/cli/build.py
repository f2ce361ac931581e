"""``cook build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cook.cli.options import (
    DemoOption,
    EnginesOption,
    JobsOption,
    JsonOption,
    QuietOption,
    RecipeArgument,
    SchedulerOption,
    StrictOption,
    ThreadsOption,
    UnsafeArgsOption,
    WideOption,
    open_output,
)

if TYPE_CHECKING:
    from cook.build.run import Built


def command(
    recipe: RecipeArgument,
    engine: EnginesOption = None,
    demo: DemoOption = False,
    strict: StrictOption = False,
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    scheduler: SchedulerOption = None,
    allow_unsafe_args: UnsafeArgsOption = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Hash every source and run every step again, stored or not.",
            show_default=False,
        ),
    ] = False,
    remeasure: Annotated[
        bool,
        typer.Option(
            "--remeasure",
            help="Time and run live again; what is not timed stays as it is stored.",
            show_default=False,
        ),
    ] = False,
    wide: WideOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Do everything a recipe asks for, and pick the best draft.

    What is stored already is reused; after an interruption the same command goes on.

    Examples:

      cook build recipes/demo.yaml
      cook build recipes/ling-flash-iq1kt.yaml --engine ik=~/ik_llama.cpp/build
      cook build recipes/ling-flash-iq1kt.yaml --engine ik=~/ik_llama.cpp/build --demo
      cook build recipes/demo.yaml --scheduler tcp://10.0.0.1:8786
    """
    output = open_output(json, quiet)
    from cook.build.answer import answer

    def build_it() -> Built:
        from cook.build.prepare import prepare
        from cook.build.run import build

        prepared = prepare(
            recipe,
            engines=engine or (),
            demo=demo,
            strict=strict,
            threads=threads,
            unsafe_args=allow_unsafe_args,
            output=output,
        )
        return build(
            prepared,
            output,
            jobs=jobs,
            threads=threads,
            fresh=fresh,
            remeasure=remeasure,
            scheduler=scheduler,
        )

    question: dict[str, object] = {
        "build": recipe,
        "from": Path.cwd(),
        "engine": engine,
        "demo": demo,
    }
    question |= {"strict": strict, "threads": threads, "unsafe_args": allow_unsafe_args}
    answer(question, build_it, output, fresh=fresh or remeasure, wide=wide)
