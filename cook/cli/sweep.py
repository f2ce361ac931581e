"""``cook sweep``."""

from __future__ import annotations

from pathlib import Path

from cook.cli import options as opt
from cook.output import Output


def command(
    output: Output,
    pipeline: Path = opt.argument(
        "PIPELINE",
        "Pipeline file, or the name of a shipped one.",
        autocompletion=opt.complete_pipeline,
    ),
    plan: bool = opt.flag("--plan", "Print the stale cells as a matrix; run nothing."),
    cell: str | None = opt.option("--cell", "Run this cell only, stale or not.", metavar="NAME"),
    report: list[Path] | None = opt.option(
        "--report", "Run nothing: report the cells found here.", metavar="DIR"
    ),
    accept: str | None = opt.option(
        "--accept", "Compare later nights with this cell's last night.", metavar="NAME"
    ),
    all_cells: bool = opt.flag("--all", "Run fresh cells as well."),
    out: Path | None = opt.option("--out", "Write records and reports here.", metavar="DIR"),
    verbose: bool = opt.flag("--verbose", "Show each step as it runs."),
    jobs: int = opt.JOBS,
    threads: int | None = opt.THREADS,
    scheduler: str | None = opt.SCHEDULER,
    allow_unsafe_args: bool = opt.UNSAFE_ARGS,
) -> None:
    """Run every recipe of a pipeline on every engine, and compare with the accepted night.

    One line a cell, and the smallest loss of speed that such a night finds. Exits 4 when something
    got worse for certain, 1 or 5 when a cell failed. In a CI job the summary goes to
    $GITHUB_STEP_SUMMARY as well.

    Examples:

      cook sweep pipelines/demo.yaml
      cook sweep pipelines/nightly.yaml --plan
      cook sweep pipelines/nightly.yaml --cell qwen3-0.6b-dense-bundled --out night
      cook sweep pipelines/nightly.yaml --report night --out report
    """
    from cook.nightly.tonight import NightRequest, run_night

    request = NightRequest(
        pipeline=pipeline,
        plan=plan,
        cell=cell,
        report=tuple(report or ()),
        accept=accept,
        all_cells=all_cells,
        into=out,
        verbose=verbose,
        jobs=jobs,
        threads=threads,
        scheduler=scheduler,
        unsafe_args=allow_unsafe_args,
    )
    run_night(request, output)
