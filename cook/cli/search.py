"""``cook search``."""

from __future__ import annotations

from pathlib import Path

from cook.cli import options as opt
from cook.output import Output


def command(
    out: Output,
    recipe: Path = opt.RECIPE,
    size: str = opt.option(
        "--size", "Largest file, such as 24GiB or 900MB.", metavar="SIZE", default=...
    ),
    speed: bool = opt.option(
        "--speed/--acceptance",
        "Maximize tokens a second, by times measured here, or tokens a cycle.",
        default=False,
    ),
    memory: str | None = opt.option(
        "--memory", "Limit on weights, KV cache and buffers.", metavar="SIZE"
    ),
    floor: str | None = opt.option(
        "--floor", "Smallest type for groups of up to 1 % of the weights.", metavar="TYPE"
    ),
    type: list[str] | None = opt.option(
        "--type",
        "A type to choose from; repeatable. Absent: a ladder of the engine's, and those of "
        "the recipe's quants.",
        metavar="TYPE",
    ),
    budget: str | None = opt.option(
        "--budget",
        "Evaluations (200) or minutes (40m) that the search may take. Absent: 120.",
        metavar="N|MINUTESm",
    ),
    from_csv: Path | None = opt.option(
        "--from-csv",
        "Start from a published kld_results.csv or ppl_results.csv instead of measuring.",
        metavar="FILE",
    ),
    explain: bool = opt.flag("--explain", "Show what the bits of each group buy."),
    output: Path | None = opt.option(
        "--output", "The recipe to write. Absent: NAME-searched.yaml.", "-o", metavar="FILE"
    ),
    force: bool = opt.FORCE,
    engine: str | None = opt.ENGINE,
    demo: bool = opt.DEMO,
    jobs: int = opt.JOBS,
    threads: int | None = opt.THREADS,
    wide: bool = opt.WIDE,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
) -> None:
    """Find the mix of types of which the target accepts most, within a file size.

    Each group of tensors is replayed in other types on the target's recorded text, and the best mix
    is allocated by what each type costs. On prompts that the search did not see it is compared
    with the recipe's quants and the engine's mixtures. The same command continues a search.

    Examples:

      cook search demo --size 1.9MiB
      cook search recipes/ling-flash-iq1kt.yaml --size 24GiB --budget 4h -o ling-searched.yaml
      cook search mine.yaml --size 12GiB --type q4_K --type q6_K --type q8_0 --budget 200
    """
    from cook.record.record import Objective
    from cook.search.prepared import SearchRequest, budget_of, bytes_of
    from cook.search.search import print_search

    request = SearchRequest(
        recipe=recipe,
        size_bytes=bytes_of(size, "--size"),
        output=output or Path(f"{recipe.stem}-searched.yaml"),
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
        unsafe_args=allow_unsafe_args,
        replaces=force,
    )
    print_search(request, out, wide=wide, explain=explain)
