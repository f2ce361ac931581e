"""``cook search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cook.cli.options import (
    DemoOption,
    EngineOption,
    JobsOption,
    JsonOption,
    QuietOption,
    RecipeArgument,
    ThreadsOption,
    UnsafeArgsOption,
    WideOption,
    open_output,
)


def command(
    recipe: RecipeArgument,
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Largest file, such as 24GiB or 900MB.")
    ],
    speed: Annotated[
        bool,
        typer.Option(
            "--speed/--acceptance",
            help="What is sought: tokens a second, by times measured here, or tokens a cycle.",
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="Most memory: weights, KV cache and buffers."
        ),
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option("--floor", metavar="TYPE", help="Least type of groups of 1 % of the weights."),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="A type to choose from; repeatable. Absent: a ladder of the engine's, and those "
            "of the recipe's quants.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="N|MINUTESm",
            help="Evaluations (200) or minutes (40m) that the search may take. Absent: 120.",
        ),
    ] = None,
    from_csv: Annotated[
        Path | None,
        typer.Option(
            "--from-csv",
            metavar="FILE",
            help="Start from a published kld_results.csv or ppl_results.csv instead of measuring.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show which groups earn their bits, a line each.", show_default=False
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of what the refinement draws by lot.")
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The recipe to write. Absent: NAME-searched.yaml.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an output that exists.", show_default=False)
    ] = False,
    engine: EngineOption = None,
    demo: DemoOption = False,
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    wide: WideOption = False,
    allow_unsafe_args: UnsafeArgsOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the mix of types that the target accepts most of, in files of a size.

    Every group of tensors is tried in other types and replayed on what the target says; the best
    mix is allocated, replayed whole and refined. The verdict is from prompts that the search did
    not see: the mix stands against the recipe's own quants and the engine's mixtures, and is
    better, or a tie. What was evaluated is kept: the same command again goes on.

    Examples:

      cook search demo --size 1.9MiB
      cook search recipes/ling-flash-iq1kt.yaml --size 24GiB --budget 4h -o ling-searched.yaml
      cook search mine.yaml --size 12GiB --type q4_K --type q6_K --type q8_0 --budget 200
    """
    out = open_output(json, quiet)
    from cook.record.objective import Objective
    from cook.search.job import SearchRequest, budget_of, bytes_of
    from cook.search.search import answer

    path = output or Path(f"{recipe.stem}-searched.yaml")
    request = SearchRequest(
        recipe=recipe,
        size_bytes=bytes_of(size, "--size"),
        output=path,
        maximize=Objective.DECODE_SPEED if speed else Objective.ACCEPTANCE_LENGTH,
        memory_bytes=bytes_of(memory, "--memory") if memory is not None else None,
        floor=floor,
        types=tuple(type or ()),
        budget=budget_of(budget),
        from_csv=from_csv,
        engine=engine,
        demo=demo,
        jobs=jobs,
        threads=threads,
        seed=seed,
        unsafe_args=allow_unsafe_args,
        replaces=force,
    )
    answer(request, out, wide=wide, explain=explain)
