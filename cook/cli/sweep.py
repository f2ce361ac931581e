"""``cook sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cook.cli.options import (
    JobsOption,
    JsonOption,
    QuietOption,
    SchedulerOption,
    ThreadsOption,
    UnsafeArgsOption,
    complete_pipeline,
    open_output,
)


def command(
    pipeline: Annotated[
        Path,
        typer.Argument(
            metavar="PIPELINE",
            help="Pipeline file, or the name of a shipped one.",
            autocompletion=complete_pipeline,
        ),
    ],
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Print the stale cells as a matrix; run nothing.", show_default=False
        ),
    ] = False,
    cell: Annotated[
        str | None,
        typer.Option("--cell", metavar="NAME", help="Run this cell only, stale or not."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option("--report", metavar="DIR", help="Run nothing: report the cells found here."),
    ] = None,
    accept: Annotated[
        str | None,
        typer.Option(
            "--accept", metavar="NAME", help="Compare later nights with this cell's last night."
        ),
    ] = None,
    all_cells: Annotated[
        bool, typer.Option("--all", help="Run fresh cells as well.", show_default=False)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write records and reports here."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show each step as it runs.", show_default=False)
    ] = False,
    jobs: JobsOption = 1,
    threads: ThreadsOption = None,
    scheduler: SchedulerOption = None,
    allow_unsafe_args: UnsafeArgsOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
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
    output = open_output(json, quiet)
    from cook.nightly.tonight import NightRequest, tonight

    asked = NightRequest(
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
    tonight(asked, output)
