"""Section: every candidate in one table."""

from __future__ import annotations

from cook.report.document import Block, Section, Table, Text
from cook.report.record import Record
from cook.report.table import columns, draft_columns, draft_rows, rows

FIRST = 8
"""Rows in sight; the rest is folded away."""
ELSEWHERE = ("bpw", "PPL", "KLD")
"""Columns that have a section of their own."""


def section(record: Record) -> Section:
    """One row a candidate, or a quant where nothing was scored."""
    scored = bool(record.candidates)
    title = "All candidates" if scored else "All quants"
    found = rows(record) if scored else draft_rows(record)
    if not found:
        return Section("candidates", title, absent="the record has no quants and no candidates")
    heads = columns(record) if scored else draft_columns()
    kept = [i for i, (head, _) in enumerate(heads) if not scored or head not in ELSEWHERE]
    mark = next((i for i, row in enumerate(found) if (row[0] or "").startswith("* ")), None)
    bare = [((row[0] or "").removeprefix("* ").strip(), *row[1:]) for row in found]
    cut = tuple(tuple(row[i] for i in kept) for row in bare)
    titles = tuple(heads[i] for i in kept)
    blocks: list[Block] = [
        Table(titles, cut[:FIRST], strong=mark if mark is not None and mark < FIRST else None)
    ]
    if len(cut) > FIRST:
        blocks.append(Table(titles, cut[FIRST:], title=f"{len(cut) - FIRST} more candidates"))
    if any(c.live is None and c.predicted is not None for c in record.candidates):
        told = "~ marks counts of a replay: that candidate did not run live."
        blocks.append(Text(told, quiet=True))
    lead = "The pick is marked; a dash is what was not measured." if scored else ""
    return Section("candidates", title, lead, tuple(blocks))
