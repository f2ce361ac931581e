"""``cook build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cook.cli import options as opt
from cook.output import Output

if TYPE_CHECKING:
    from cook.job.run import Built


def command(
    out: Output,
    recipe: Path = opt.RECIPE,
    engine: list[str] | None = opt.ENGINES,
    demo: bool = opt.DEMO,
    strict: bool = opt.STRICT,
    jobs: int = opt.JOBS,
    threads: int | None = opt.THREADS,
    scheduler: str | None = opt.SCHEDULER,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
    fresh: bool = opt.flag("--fresh", "Hash every source and run every step again, stored or not."),
    remeasure: bool = opt.flag(
        "--remeasure", "Time and run live again; what is not timed stays as it is stored."
    ),
    wide: bool = opt.WIDE,
) -> None:
    """Do everything a recipe asks for, and pick the best draft.

    What is stored already is reused; after an interruption the same command goes on.

    Examples:

      cook build recipes/demo.yaml
      cook build recipes/ling-flash-iq1kt.yaml --engine ik=~/ik_llama.cpp/build
      cook build recipes/ling-flash-iq1kt.yaml --engine ik=~/ik_llama.cpp/build --demo
      cook build recipes/demo.yaml --scheduler tcp://10.0.0.1:8786
    """
    from cook.job.answer import print_build

    def build_it() -> Built:
        from cook.job.prepare import prepare
        from cook.job.run import build

        prepared = prepare(
            recipe,
            engines=engine or (),
            demo=demo,
            strict=strict,
            threads=threads,
            unsafe_args=allow_unsafe_args,
            output=out,
        )
        return build(
            prepared,
            out,
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
        "strict": strict,
        "threads": threads,
        "unsafe_args": allow_unsafe_args,
    }
    again = "--fresh" if fresh else "--remeasure" if remeasure else None
    print_build(question, build_it, out, again=again, wide=wide)
