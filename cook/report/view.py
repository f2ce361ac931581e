"""From a record to a report's document: the only door to the sections."""

from __future__ import annotations

from collections.abc import Callable

from cook.record.record import Record
from cook.report.document import Document, Section
from cook.report.headline import headline
from cook.report.sections import (
    candidates,
    category,
    coverage,
    depth,
    frontier,
    lengths,
    origins,
    output_check,
    predicted_live,
    quality,
    ranks,
    time,
    types,
    warnings,
)

SECTIONS: tuple[Callable[[Record], Section], ...] = (
    candidates.section,
    frontier.section,
    lengths.section,
    quality.section,
    ranks.section,
    predicted_live.section,
    depth.section,
    category.section,
    types.section,
    time.section,
    coverage.section,
    output_check.section,
    warnings.section,
    origins.section,
)
"""In the order in which a reader meets them; a new one is one module and one line here."""


def document(record: Record) -> Document:
    """The whole report of ``record``."""
    subtitle = [record.created, f"engine {', '.join(record.engines) or 'none'}"]
    subtitle.append(record.machine.processor)
    subtitle += list(record.machine.accelerators)
    if record.demo:
        subtitle.append("demo models: these figures transfer to no other model")
    return Document(
        title=record.recipe,
        subtitle=tuple(part for part in subtitle if part),
        headline=headline(record),
        sections=tuple(section(record) for section in SECTIONS),
    )
