"""``cook report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cook.cli.options import JsonOption, QuietOption, open_output

if TYPE_CHECKING:
    from cook.output import Output
    from cook.report.writing import ReportRequest


def command(
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECORD]",
            help="Record file, or NAME or NAME@DATE of a recipe built here; absent: the last.",
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
            help="Compare with an earlier record, or a history's accepted night.",
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Show the last search of that recipe in place of its build.",
            show_default=False,
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the records that are kept.", show_default=False)
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show a record for people: one HTML file, Markdown, plots.

    Every build keeps its record; --list shows them, those of one recipe if it is named.
    Without options it writes NAME.html beside the record. The page stands by itself: it opens
    offline, runs no script, and follows the reader's light or dark theme.
    With --against it shows what changed and how certain that is, and exits 4 on a regression.

    Examples:

      cook report
      cook report --list
      cook report demo@2026-11-21
      cook report ling-flash-iq1kt --html report.html
      cook report record.json --markdown report.md --plots plots
      cook report record.json --against ~/.local/share/cook/history/nightly.jsonl
      cook report --markdown - >> "$GITHUB_STEP_SUMMARY"
      cook report --search demo --html search.html --plots plots
    """
    output = open_output(json, quiet)
    from cook.record.find import find_record
    from cook.record.record import read_record
    from cook.report.view import document
    from cook.report.writing import ReportRequest, printed, write_report

    if list_:
        _list(output, record)
        return
    if search:
        _show_search(output, record, ReportRequest(html, markdown, plots), against)
        return
    path = find_record(record)
    found = read_record(path)
    judgement = None
    if against is not None:
        from cook.nightly import comparison

        judgement = comparison.compare(found, against)
    shown = document(found)
    to_stdout = str(markdown) == "-"
    asked = (html, markdown, plots, judgement)
    if all(one is None for one in asked):
        html = path.with_suffix(".html")
    written = write_report(shown, ReportRequest(html, None if to_stdout else markdown, plots))
    output.emit(
        {
            "record": path,
            "written": written,
            "markdown": printed(shown, plots) if to_stdout else None,
            "against": comparison.as_document(judgement) if judgement is not None else None,
        }
    )
    if to_stdout:
        output.block(printed(shown, plots))
    else:
        for file in written:
            output.data(str(file))
        _print_other_records(output, path)
    if judgement is not None:
        comparison.show(judgement, output)
        comparison.raise_for(judgement)


def _show_search(
    output: Output, named: str | None, wanted: ReportRequest, against: Path | None
) -> None:
    """Writes a search's record as a report; InputError for ``against``, which builds alone have."""
    from cook.errors import InputError
    from cook.record.find import find_search
    from cook.record.search_record import read_search_record
    from cook.report.search_view import search_document
    from cook.report.writing import ReportRequest, printed, write_report

    if against is not None:
        raise InputError("--search goes with --html, --markdown and --plots alone")
    path = find_search(named)
    shown = search_document(read_search_record(path))
    to_stdout = str(wanted.markdown) == "-"
    if wanted == ReportRequest():
        wanted = replace(wanted, html=path.with_suffix(".html"))
    written = write_report(shown, replace(wanted, markdown=None) if to_stdout else wanted)
    text = printed(shown, wanted.plots) if to_stdout else None
    output.emit({"record": path, "written": written, "markdown": text})
    if text is not None:
        output.block(text)
    for file in written:
        output.data(str(file))


def _list(output: Output, recipe: str | None) -> None:
    """Every kept record, the last made first, with what it picked."""
    from cook.errors import InputError
    from cook.output import Column
    from cook.record.find import HINT, kept_records
    from cook.record.record import read_record

    kept = kept_records(recipe)
    if not kept:
        raise InputError(f"no record{f' of {recipe}' if recipe else ''} is kept", hint=HINT)
    documents: list[dict[str, object]] = []
    rows: list[tuple[str | None, ...]] = []
    faults: list[InputError] = []
    for one in kept:
        mark = "* " if one.newest else "  "
        named: dict[str, object] = {"record": one.name, "path": one.path, "newest": one.newest}
        try:
            record = read_record(one.path)
        except InputError as error:
            documents.append(named | {"error": error.message, "hint": error.hint})
            rows.append((f"{mark}{one.name}", "cannot be read", None, None))
            faults.append(error)
            continue
        winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
        speedup = winner.speedup if winner is not None else None
        target = "demo" if record.demo else Path(record.target).name or None
        documents.append(
            named
            | {
                "created": record.created,
                "pick": record.pick.candidate,
                "speedup": speedup,
                "target": record.target,
                "demo": record.demo,
                "engines": list(record.engines),
                "recipe_sha256": record.recipe_sha256,
            }
        )
        picked = record.pick.candidate or ("nothing" if record.candidates else None)
        rows.append((f"{mark}{one.name}", picked, f"{speedup:.2f}x" if speedup else None, target))
    output.emit({"records": documents})
    output.table(rows, ("record", "pick", Column("speedup", "right"), "target"))
    output.say("* is what the recipe's name alone means")
    for fault in faults:
        output.warn(f"{fault.message}; {fault.hint}" if fault.hint else fault.message)


def _print_other_records(output: Output, path: Path) -> None:
    """How many more records there are, where one was shown by its recipe's name."""
    from cook.paths import cook_home
    from cook.record.find import kept_records
    from cook.units import plural

    more = len(kept_records(path.stem)) - 1
    if path.parent == cook_home() / "records" and more > 0:
        output.say(f"{plural(more, 'earlier record')} of {path.stem}: `cook report --list`")
