"""From a record to a report's document: the only door to the sections."""

from __future__ import annotations

from dataclasses import replace

from cook.record.record import Record
from cook.report.document import Document, subtitle
from cook.report.headline import headline
from cook.report.public import public
from cook.report.sections import conditions, lengths, speeds, tables, types

IN_SIGHT = (speeds.by_draft, lengths.section, speeds.by_category, tables.warnings)
"""Sections that are open, the first of them on the first screen."""
FOLDED = (
    tables.candidates,
    conditions.acceptance,
    speeds.predicted_live,
    speeds.where_time_goes,
    types.quality,
    conditions.other_chains,
    conditions.in_parallel,
    tables.output,
    types.types,
    types.coverage,
    tables.provenance,
)
"""The others, in the order in which a reader meets them; a new one is a module and a line."""


def document(record: Record) -> Document:
    """The whole report of ``record``, as others may see it."""
    record = public(record)
    return Document(
        title=record.recipe,
        subtitle=subtitle(record, ", ".join(record.engines) or "none"),
        headline=headline(record),
        sections=(
            *(make(record) for make in IN_SIGHT),
            *(replace(make(record), folded=True) for make in FOLDED),
        ),
    )
