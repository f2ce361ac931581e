"""``cook report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output


def command(
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECORD]",
            help="Record file, or the name of a recipe in COOK_HOME/records. Absent: the newest.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the HTML report here.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Write the report as Markdown; - prints it."
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="DIR", help="Write every plot as SVG and PNG into DIR."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="HISTORY|RECORD",
            help="Compare with an earlier record, or a history's last good night.",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a record for people: one HTML file, Markdown, plots.

    Without options it writes NAME.html beside the record. The page stands by itself: it opens
    offline, runs no script, and follows the reader's light or dark theme.
    With --against it tells what changed and how certain that is, and exits 4 on a regression.

    Examples:

      cook report
      cook report ling-flash-iq1kt --html report.html
      cook report record.json --markdown report.md --plots plots
      cook report record.json --against ~/.local/share/cook/history/nightly.jsonl
      cook report --markdown - >> "$GITHUB_STEP_SUMMARY"
    """
    output = open_output(json, quiet)
    from cook.nightly import comparison
    from cook.record.find import find_record
    from cook.record.record import read_record
    from cook.report.view import document
    from cook.report.writing import ReportRequest, printed, write_report

    path = find_record(record)
    found = read_record(path)
    judgement = comparison.compare(found, against) if against is not None else None
    shown = document(found)
    to_stdout = str(markdown) == "-"
    if html is None and markdown is None and plots is None and judgement is None:
        html = path.with_suffix(".html")
    written = write_report(shown, ReportRequest(html, None if to_stdout else markdown, plots))
    output.emit(
        {
            "record": path,
            "written": written,
            "markdown": printed(shown, plots) if to_stdout else None,
            "against": comparison.as_document(judgement),
        }
    )
    if to_stdout:
        output.block(printed(shown, plots))
    else:
        for file in written:
            output.data(str(file))
    if judgement is not None:
        comparison.show(judgement, output)
        comparison.raise_for(judgement)
