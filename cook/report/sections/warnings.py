"""Section: warnings, and candidates that could not win or did not run."""

from __future__ import annotations

from cook.record.record import Record
from cook.report.document import Items, Section, Table, Text

TITLE = "Warnings and what was left out"
MOST_ROWS = 200


def section(record: Record) -> Section:
    """Everything that was told, most urgent first."""
    blocks: list[Items | Table | Text] = []
    failed = [s for s in record.steps if s.error]
    if failed:
        blocks.append(Items(tuple(f"{s.label} failed: {s.error}" for s in failed), marked=True))
    if record.warnings:
        blocks.append(Items(record.warnings, marked=True))
    reasons = {e.candidate: e.reason for e in (*record.pick.excluded, *record.left_out)}
    if reasons:
        rows = tuple(reasons.items())
        blocks.append(
            Table(
                (("cannot win", "left"), ("why", "left")),
                rows[:MOST_ROWS],
                title=f"{len(rows)} that could not win or did not run",
            )
        )
    if not blocks:
        return Section("warnings", TITLE, blocks=(Text("None."),))
    return Section("warnings", TITLE, blocks=tuple(blocks))
