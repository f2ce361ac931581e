"""``cook report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cook.cli import options as opt
from cook.output import Output, right
from cook.paths import cook_home
from cook.units import plural


def command(
    out: Output,
    record: str | None = opt.RECORD,
    html: Path | None = opt.option("--html", "Write the HTML report here.", metavar="FILE"),
    markdown: Path | None = opt.option(
        "--markdown", "Write the report as Markdown; - prints it.", metavar="FILE"
    ),
    plots: Path | None = opt.option(
        "--plots", "Write every plot as SVG and PNG into DIR.", metavar="DIR"
    ),
    against: Path | None = opt.option(
        "--against",
        "Compare with an earlier record, or a history's accepted night.",
        metavar="HISTORY|RECORD",
    ),
    search: bool = opt.flag(
        "--search", "Show the last search of that recipe in place of its build."
    ),
    list_: bool = opt.flag("--list", "List the records that are kept."),
) -> None:
    """Show a record for people: one HTML file, Markdown, plots.

    Every build keeps its record; --list shows them, those of one recipe if it is named.
    Without options it writes NAME.html next to the record. The page needs no other file: it opens
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
    from cook.errors import InputError
    from cook.record.find import find_record, find_search, kept_records
    from cook.report.writing import printed, write_report

    if list_:
        _list(out, record)
        return
    judgement = None
    if search:
        from cook.record.search_record import read_search_record
        from cook.report.search_view import search_document

        if against is not None:
            raise InputError("--search goes with --html, --markdown and --plots alone")
        path = find_search(record)
        shown = search_document(read_search_record(path))
    else:
        from cook.record.record import read_record
        from cook.report.view import document

        path = find_record(record)
        found = read_record(path)
        if against is not None:
            from cook.nightly import gates

            judgement = gates.compare(found, against)
        shown = document(found)
    if (html, markdown, plots, judgement) == (None, None, None, None):
        html = path.with_suffix(".html")
    text = printed(shown, plots) if str(markdown) == "-" else None
    file = markdown if text is None else None
    written = write_report(shown, html=html, markdown=file, plots=plots)
    answer: dict[str, Any] = {"record": path, "written": written, "markdown": text}
    if not search:
        answer["against"] = judgement and gates.as_document(judgement)
    out.emit(answer)
    if text is not None:
        out.block(text)
    if text is None or search:
        for one in written:
            out.data(str(one))
    if text is None and not search and path.parent == cook_home() / "records":
        more = len(kept_records(path.stem)) - 1
        if more > 0:
            out.say(f"{plural(more, 'earlier record')} of {path.stem}: `cook report --list`")
    if judgement is not None:
        gates.show(judgement, out)
        gates.raise_for(judgement)


def _list(out: Output, recipe: str | None) -> None:
    """Every kept record, the last made first, with what it picked."""
    from cook.errors import InputError
    from cook.record.find import HINT, kept_records
    from cook.record.record import read_record

    kept = kept_records(recipe)
    if not kept:
        raise InputError(f"no record{f' of {recipe}' if recipe else ''} is kept", hint=HINT)
    documents: list[dict[str, object]] = []
    rows: list[tuple[str | None, ...]] = []
    faults: list[InputError] = []
    for one in kept:
        name = f"{'*' if one.newest else ' '} {one.name}"
        known: dict[str, object] = {"record": one.name, "path": one.path, "newest": one.newest}
        try:
            record = read_record(one.path)
        except InputError as error:
            documents.append(known | {"error": error.message, "hint": error.hint})
            rows.append((name, "cannot be read", None, None))
            faults.append(error)
            continue
        winner = record.candidate(record.pick.candidate) if record.pick.candidate else None
        speedup = winner.speedup if winner is not None else None
        documents.append(
            known
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
        target = "demo" if record.demo else Path(record.target).name or None
        picked = record.pick.candidate or ("nothing" if record.candidates else None)
        rows.append((name, picked, f"{speedup:.2f}x" if speedup else None, target))
    out.emit({"records": documents})
    out.table(rows, ("record", "pick", *right("speedup"), "target"))
    out.say("* is what the recipe's name alone means")
    for fault in faults:
        out.warn(f"{fault.message}; {fault.hint}" if fault.hint else fault.message)
