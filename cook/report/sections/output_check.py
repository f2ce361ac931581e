"""Section: whether replies are the same as without a draft."""

from __future__ import annotations

from cook.record.measured import OutputCheck
from cook.record.record import Record
from cook.report.document import Section, Table

TITLE = "Same output as without a draft"


def section(record: Record) -> Section:
    """Every candidate whose replies were compared token by token."""
    checked = [(c.name, c.output) for c in record.candidates if c.output is not None]
    if not checked:
        return Section(
            "output", TITLE, absent="no replies were compared with those without a draft"
        )
    rows = tuple((name, *_cells(check)) for name, check in checked)
    titles = (
        "identical",
        "near ties",
        "larger gaps",
        "unknown",
        "largest gap",
        "earliest at token",
        "so without a draft",
    )
    table = Table(
        columns=(("candidate", "left"), *((title, "right") for title in titles)),
        rows=rows,
        strong=next(
            (i for i, (name, _) in enumerate(checked) if name == record.pick.candidate), None
        ),
    )
    lead = (
        "Speculation changes speed, not text, except that a batch may round otherwise than single "
        f"tokens do. A near tie: the target's two logits were at most {_gap(checked[0][1])}. The "
        "last column counts differences that the target alone makes as well, at that batch width."
    )
    return Section("output", TITLE, lead, (table,))


def _gap(check: OutputCheck) -> str:
    how = "measured on this engine" if check.gap_is_measured else "from the literature"
    return f"{check.near_tie_gap:.3g} apart ({how})"


def _cells(check: OutputCheck) -> tuple[str | None, ...]:
    tried = check.without_draft_tried
    return (
        f"{check.identical}/{check.replies}",
        str(check.near_ties),
        str(check.material),
        str(check.unknown),
        f"{check.largest_gap:.3f}" if check.largest_gap is not None else None,
        str(min(check.first_positions)) if check.first_positions else None,
        f"{check.without_draft}/{tried}" if tried else None,
    )
