"""From a record to a report's document: the only door to the sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cook.record.record import Record
from cook.report.answers import answers, evidence
from cook.report.document import Document, Section, subtitle
from cook.report.headline import headline
from cook.report.public import public
from cook.report.sections import (
    category,
    coverage,
    forest,
    in_parallel,
    lengths,
    other_chains,
    predicted_live,
    quality,
    tables,
    time,
    types,
)

SECTIONS: tuple[Callable[[Record], Section], ...] = (
    lengths.section,
    forest.by_category,
    tables.warnings,
    tables.candidates,
    category.section,
    predicted_live.section,
    time.section,
    quality.section,
    other_chains.section,
    in_parallel.section,
    tables.output,
    types.section,
    coverage.section,
    tables.provenance,
)
"""Below the first screen, in the order in which a reader meets them; a new one is one module and
one line here."""
IN_SIGHT = frozenset({"lengths", "gains", "warnings"})
"""Sections that are open; the others are folded."""


def document(record: Record) -> Document:
    """The whole report of ``record``, as others may see it."""
    record = public(record)
    return Document(
        title=record.recipe,
        subtitle=subtitle(record, ", ".join(record.engines) or "none"),
        headline=headline(record),
        evidence=evidence(record),
        answers=answers(record),
        first=forest.by_draft(record),
        sections=tuple(
            replace(section, folded=section.id not in IN_SIGHT)
            for section in (make(record) for make in SECTIONS)
        ),
    )
