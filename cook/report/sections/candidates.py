"""Section: every candidate in one table."""

from __future__ import annotations

from collections.abc import Sequence

from cook.record.record import Record
from cook.report.document import Block, Section, Table, Text
from cook.report.table import columns, draft_columns, draft_rows, rows, short_rows

FIRST = 12
"""Rows in sight at most; the rest is folded away."""
Rows = tuple[tuple[str | None, ...], ...]
ELSEWHERE = ("bpw", "PPL", "KLD")
"""Columns that have a section of their own."""


def section(record: Record) -> Section:
    """One row a candidate, or a quant where nothing was scored."""
    scored = bool(record.candidates)
    title = "All candidates" if scored else "All quants"
    every = rows(record) if scored else draft_rows(record)
    found = (short_rows(record) if scored else every)[:FIRST]
    if not found:
        return Section("candidates", title, absent="the record has no quants and no candidates")
    heads = columns(record) if scored else draft_columns()
    folded = [row for row in every if row not in found]
    kept = [i for i, (head, _) in enumerate(heads) if not scored or head not in ELSEWHERE]
    mark = next((i for i, row in enumerate(found) if (row[0] or "").startswith("* ")), None)
    titles = tuple(heads[i] for i in kept)
    blocks: list[Block] = [Table(titles, _cut(found, kept), strong=mark)]
    if folded:
        more = f"{len(folded)} more {'candidates' if scored else 'quants'}"
        blocks.append(Table(titles, _cut(folded, kept), title=more))
    if any(c.live is None and c.predicted is not None for c in record.candidates):
        told = "~ marks counts of a replay: that candidate did not run live."
        blocks.append(Text(told, quiet=True))
    lead = "The pick is marked; a dash is what was not measured." if scored else ""
    return Section("candidates", title, lead, tuple(blocks))


def _cut(found: Sequence[tuple[str | None, ...]], kept: Sequence[int]) -> Rows:
    """``found`` with the columns ``kept``, the pick's mark left to the table."""
    bare = [((row[0] or "").removeprefix("* ").strip(), *row[1:]) for row in found]
    return tuple(tuple(row[i] for i in kept) for row in bare)
