"""Section: the end-to-end speedup of every draft at its best draft length, with no draft at 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import finite, named, picked_draft
from cook.report.document import Section, Text, figures
from cook.report.speedups import (
    DraftSpeedup,
    base_of,
    contradicted,
    drafts_at_their_best,
)

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
        why = "no draft has a speed beside one without a draft"
        return Section("speedups", TITLE, absent=why)
    best = picked_draft(record)
    drawn = rows[:MOST_ROWS]
    if best is not None and best not in [row.draft for row in drawn]:
        drawn = [*drawn[:-1], *(row for row in rows if row.draft == best)]
    alt = "End-to-end speedup over no draft: " + "; ".join(_said(row) for row in drawn[:8])

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, best)

    table = figures(
        ("draft", "draft length", "live", "predicted", "against no draft"),
        (
            (
                row.draft,
                str(row.length) if row.length is not None else None,
                row.live.told if row.live else None,
                row.predicted.told if row.predicted else None,
                _verdict(row),
            )
            for row in rows
        ),
        title="Figures: end-to-end speedup over no draft",
        pick=best,
    )
    height = 96 + 29 * len(drawn)
    plot = Plot("speedups", TITLE, alt + ".", draw, height=height, narrow_height=height + 8)
    lead = _lead(record, rows)
    notes = [Text(told, quiet=True) for told in _notes(record, rows, drawn)]
    return Section("speedups", TITLE, lead, (plot, *notes, table))


def _lead(record: Record, rows: Sequence[DraftSpeedup]) -> str:
    sure = f"{record.pick.confidence:.0%} intervals"
    told = f"Each draft at its best draft length, over no draft (the line at 1); {sure}."
    if any(row.live for row in rows) and any(row.live is None for row in rows):
        told += " Filled: ran live. Hollow: predicted, its interval knows how prompts differ only."
    elif not any(row.live for row in rows):
        told += " All are predicted: their intervals know how prompts differ and nothing else."
    return told


def _notes(
    record: Record, rows: Sequence[DraftSpeedup], drawn: Sequence[DraftSpeedup]
) -> list[str]:
    told = []
    wrong = [row for row in rows if contradicted(row.candidate) and row.live and row.predicted]
    if wrong:
        told.append(
            f"Live runs contradict what was predicted of {named((row.draft for row in wrong), 3)}: "
            "trust the filled points."
        )
    base = base_of(record, "live")
    if base is not None and contradicted(base) and any(row.live is None for row in rows):
        off_by = finite(base.predicted.off_by) if base.predicted else None
        told.append(
            f"The speed without a draft was mispredicted by {off_by or 0:+.0%}: hollow points are "
            "off by as much the other way."
        )
    if len(rows) > len(drawn):
        told.append(f"{len(rows) - len(drawn)} slower drafts are in the table.")
    return told


def _named(row: DraftSpeedup, most: int) -> str:
    """The draft and its length; an n-gram rival, which has none of ours, by its name alone."""
    name = label(row.draft, most)
    return name if row.length is None else f"{name}, {row.length}"


def _verdict(row: DraftSpeedup) -> str:
    found = row.live or row.predicted
    assert found is not None, "a row has one of both"
    if found.interval is None:
        return "too few prompts to say"
    if found.interval.low > 1:
        return "faster"
    return "slower" if found.interval.high < 1 else "undecided"


def _said(row: DraftSpeedup) -> str:
    kind = "live" if row.live else "predicted"
    found = row.live or row.predicted
    return f"{row.draft} {found.told} {kind}" if found else row.draft


def _draw(sheet: Sheet, rows: Sequence[DraftSpeedup], best: str | None) -> None:
    axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
    points = [s.ratio for row in rows for s in (row.live, row.predicted) if s]
    shown = [row.live or row.predicted for row in rows]
    ends = [e for s in shown if s and s.interval for e in (s.interval.low, s.interval.high)]
    low, high = min(1.0, *points), max(1.0, *points)
    low = max(min([low, *ends]), low - MOST_SPAN, 0.0)
    high = min(max([high, *ends]), high + MOST_SPAN)
    left, right = sheet.ratios(axes, (low, high), len(rows), LEAST_SPAN)
    for place, row in enumerate(rows):
        strong = row.draft == best
        colour = sheet.colour("pick" if strong else "s0")
        for kind, found in (("predicted", row.predicted), ("live", row.live)):
            if found is None:
                continue
            live = kind == "live"
            # Beside a live run its forecast is a point for comparison only.
            alone = live or row.live is None
            sheet.point(
                axes,
                found.ratio,
                place,
                colour if alone else sheet.colour("muted"),
                live=live,
                x_ends=found.ends_within(left, right) if alone else None,
            )
        main = row.live or row.predicted
        assert main is not None, "a row has one of both"
        side = sheet.colour("s1" if main.ratio < 1 else "ink")
        sheet.at_the_right(axes, place, f"{main.ratio:.2f}x", side, strong=strong)
    names = [_named(row, 14 if sheet.narrow else 24) for row in rows]
    axes.set_yticks(range(len(rows)), names)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(sheet.colour("ink"))
        tick.set_fontweight("bold" if row.draft == best else "normal")
    axes.tick_params(axis="y", length=0)
    kinds: list[Literal["live", "predicted"]] = []
    kinds += ["live"] if any(row.live for row in rows) else []
    kinds += ["predicted"] if any(row.predicted for row in rows) else []
    sheet.kinds(axes, kinds)
    sheet.legend(axes, len(kinds))
