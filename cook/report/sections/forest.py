"""Section: the end-to-end speedup of every draft at its best draft length, with no draft at 1."""

from __future__ import annotations

from collections.abc import Sequence

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import picked_draft
from cook.report.document import Section, Text, figures
from cook.report.numbers import tokens_per_s
from cook.report.speedups import DraftSpeedup, drafts_at_their_best, speed_notes

TITLE = "End-to-end speedup of each draft"
MOST_ROWS = 16
LEAST_SPAN = 0.2
"""In shares of no draft's speed."""
MOST_SPAN = 1.6
"""An interval is cut where it leaves the drafts' own speedups by more than this."""


def section(record: Record) -> Section:
    """A row a draft, fastest first: live filled, predicted hollow."""
    rows = drafts_at_their_best(record)
    if not rows:
        why = "no speed with a draft and without one"
        return Section("speedups", TITLE, absent=why)
    best = picked_draft(record)
    drawn = rows[:MOST_ROWS]
    if best is not None and best not in [row.draft for row in drawn]:
        drawn = [*drawn[:-1], *(row for row in rows if row.draft == best)]
    alt = "End-to-end speedup over no draft: " + "; ".join(
        f"{row.draft} {row.speed.text} {row.speed.kind}" for row in drawn[:8]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, best)

    table = figures(
        ("draft", "draft length", "t/s", "speedup", "figures"),
        (
            (
                row.draft,
                str(row.length) if row.length is not None else None,
                tokens_per_s(row.speed.tokens_per_s),
                row.speed.text,
                row.speed.kind,
            )
            for row in rows
        ),
        title="Figures: end-to-end speedup over no draft",
        pick=best,
    )
    height = 96 + 29 * len(drawn)
    plot = Plot("speedups", TITLE, alt + ".", draw, height=height, narrow_height=height + 8)
    lead = "Each draft at its best draft length, over no draft (the line at 1)."
    if len({row.speed.live for row in rows}) > 1:
        lead += " Filled: ran live. Hollow: predicted."
    elif not rows[0].speed.live:
        lead += " All are predicted."
    notes = [f"{note}." for note in speed_notes(record)]
    if len(rows) > len(drawn):
        notes.append(f"{len(rows) - len(drawn)} slower drafts are in the table.")
    under = (Text(" ".join(notes), quiet=True),) if notes else ()
    return Section("speedups", TITLE, lead, (plot, *under, table))


def _draw(sheet: Sheet, rows: Sequence[DraftSpeedup], best: str | None) -> None:
    axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
    points = [row.ratio for row in rows]
    sure = [row.speed.interval for row in rows if row.speed.interval is not None]
    ends = [end for one in sure for end in (one.low, one.high)]
    low, high = min(1.0, *points), max(1.0, *points)
    low = max(min([low, *ends]), low - MOST_SPAN, 0.0)
    high = min(max([high, *ends]), high + MOST_SPAN)
    left, right = sheet.ratios(axes, (low, high), len(rows), LEAST_SPAN)
    for place, row in enumerate(rows):
        strong = row.draft == best
        colour = sheet.colour("pick" if strong else "s0")
        reach = row.speed.ends_within(left, right)
        sheet.point(axes, row.ratio, place, colour, live=row.speed.live, x_ends=reach)
        side = sheet.colour("s1" if row.ratio < 1 else "ink")
        sheet.at_the_right(axes, place, f"{row.ratio:.2f}x", side, strong=strong)
    names = [_named(row, 14 if sheet.narrow else 24) for row in rows]
    marked = next((place for place, row in enumerate(rows) if row.draft == best), None)
    sheet.rows(axes, names, 40, names[marked] if marked is not None else None)
    if any(row.speed.live for row in rows):
        sheet.kinds(axes, ["live"])
    if not all(row.speed.live for row in rows):
        sheet.kinds(axes, ["predicted"])
    sheet.legend(axes, 2)


def _named(row: DraftSpeedup, most: int) -> str:
    """The draft and its length; an n-gram rival, which has none of ours, by its name alone."""
    name = label(row.draft, most)
    return name if row.length is None else f"{name}, {row.length}"
