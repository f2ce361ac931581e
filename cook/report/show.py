"""What a build or a search prints at its end: a table, and what a reader asks next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cook.output import Column, Mode, Output
from cook.report.document import Table

if TYPE_CHECKING:
    from cook.record.record import Record

NOTHING_RAN = "nothing had to run: everything was stored"


@dataclass(frozen=True)
class Shown:
    """A record as text. Plain data, so that a receipt can keep it: see ``cook.job.answer``.

    ``table`` is what fits a terminal, ``wide`` all there is. ``answers`` go to stdout, ``warnings``
    and, with the wide table, ``notes`` to stderr.
    """

    table: Table
    wide: Table
    answers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def shown(record: Record) -> Shown:
    """``record`` as it is printed."""
    from cook.report.headline import printed_answers
    from cook.report.sections import speeds, tables

    if not record.candidates:
        quants = tables.drafts_table(record.drafts)
        return Shown(quants, quants, warnings=record.warnings)
    many = tables.to_look_at(record)
    few = tables.in_short(record, many)
    detailed = (tables.output(record), speeds.predicted_live(record))
    return Shown(
        table=tables.short_table(record, few),
        wide=tables.candidates_table(record, many),
        answers=tuple(printed_answers(record, len(few))),
        warnings=record.warnings,
        notes=tuple(section.in_words() for section in detailed if section.absent is None),
    )


def show(what: Shown, output: Output, *, wide: bool = False) -> None:
    """Print it; in json mode nothing, for the record itself is the document.

    Quiet mode prints the table's rows alone, before each ``*`` or nothing: the pick or another.
    """
    if output.mode is Mode.JSON:
        return
    for warning in what.warnings:
        output.warn(warning)
    for note in what.notes if wide else ():
        output.say(note)
    sheet = what.wide if wide else what.table
    columns = [Column(t, "right" if a == "right" else "left") for t, a in sheet.columns]
    rows = [(place == sheet.strong, row) for place, row in enumerate(sheet.rows)]
    if output.mode is Mode.QUIET:
        marked = [("*" if pick else "", *row) for pick, row in rows]
        output.table(marked, ["pick", *columns] if what.answers else columns)
        return
    marks = ("  ", "* ") if sheet.strong is not None else ("", "")
    output.table([(f"{marks[pick]}{name}", *rest) for pick, (name, *rest) in rows], columns)
    for answer in ("", *what.answers) if what.answers else ():
        output.data(answer)
