"""Sections: end-to-end speedups with no draft at 1, of each draft and by category of prompt."""

from __future__ import annotations

from collections.abc import Sequence

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import drawn, named, picked
from cook.report.document import Section, Table, Text, figures
from cook.report.speedups import (
    Speedup,
    drafts_at_their_best,
    speed_notes,
    speedups_by_category,
)
from cook.report.table import speeds_table

DRAFTS = "End-to-end speedup of each draft"
CATEGORIES = "Speedup by category"
EVERYWHERE = "Faster than no draft in every category."
MOST_DRAFTS = 16
MOST_CATEGORIES = 24
LEAST_SPAN = 0.2
"""In shares of no draft's speed."""
MOST_SPAN = 1.6
"""Intervals and single requests are cut where they leave the speedups by more than this."""


def by_draft(record: Record) -> Section:
    """A row a draft, fastest first: live filled, predicted hollow."""
    drafts = drafts_at_their_best(record)
    if not drafts:
        why = "no speed with a draft and without one"
        return Section("speedups", DRAFTS, absent=why)
    table = speeds_table(record, (one.candidate for one in drafts))
    pick = record.pick.candidate
    names = drawn([one.name for one in drafts], MOST_DRAFTS, pick)
    rows = [one for one in drafts if one.name in names]
    lead = "Each draft at its best draft length, over no draft (the line at 1)."
    if len({one.live for one in drafts}) > 1:
        lead += " Filled: ran live. Hollow: predicted."
    elif not drafts[0].live:
        lead += " All are predicted."
    notes = [f"{note}." for note in speed_notes(record)]
    if len(drafts) > len(rows):
        notes.append(f"{len(drafts) - len(rows)} slower drafts are in the table.")
    under = (Text(" ".join(notes), quiet=True),) if notes else ()
    plot = _plot("speedups", DRAFTS, table, rows, pick)
    return Section("speedups", DRAFTS, lead, (plot, *under, table))


def by_category(record: Record) -> Section:
    """The gain or loss of the pick, or of the fastest draft where none won, in every category."""
    winner = picked(record)
    order = [winner] if winner is not None and winner.draft is not None else []
    order += [row.candidate for row in drafts_at_their_best(record)]
    gains = next((found for one in order if (found := speedups_by_category(record, one))), None)
    if gains is None:
        return Section("gains", CATEGORIES, absent="no draft has speeds by category")
    table = figures(
        ("category", "speedup", "requests", "requests slower than no draft"),
        (
            (
                one.name,
                one.text,
                str(len(one.each)),
                f"{sum(r < 1 for r in one.each)}/{len(one.each)}",
            )
            for one in gains
        ),
    )
    losers = [one.name for one in gains if one.ratio < 1]
    candidate = gains[0].candidate
    lead = f"{label(candidate.name, 60)}, {'live' if candidate.live else 'predicted'}, over no "
    lead += "draft on the same requests. "
    lead += f"Slower than no draft on {named(losers)}." if losers else EVERYWHERE
    lead += " A small dot is one request."
    plot = _plot("gains", CATEGORIES, table, gains[:MOST_CATEGORIES], None)
    return Section("gains", CATEGORIES, lead, (plot, table))


def _plot(name: str, title: str, table: Table, rows: Sequence[Speedup], pick: str | None) -> Plot:
    def draw(sheet: Sheet) -> None:
        _draw(sheet, rows, pick)

    return Plot(name, title, table.alt(title), draw, height=96 + 30 * len(rows))


def _draw(sheet: Sheet, rows: Sequence[Speedup], pick: str | None) -> None:
    """Rows of ratios to no draft, which is the line at 1; below it, shaded, is slower."""
    from matplotlib.transforms import blended_transform_factory

    axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
    low, high = min(1.0, *(row.ratio for row in rows)), max(1.0, *(row.ratio for row in rows))
    spread = [ratio for row in rows for ratio in row.each]
    spread += [end for row in rows if (sure := row.interval) for end in (sure.low, sure.high)]
    low = max(min([low, *spread]), low - MOST_SPAN, 0.0)
    high = min(max([high, *spread]), high + MOST_SPAN)
    room = max((high - low) * 0.05, 0.02)
    axes.set_xlim(max(0.0, low - room), high + room)
    sheet.span(axes, "x", LEAST_SPAN)
    left, right = axes.get_xlim()
    axes.axvspan(left, 1, color=sheet.colour("grid"), alpha=0.45, linewidth=0, zorder=0)
    axes.axvline(1, color=sheet.colour("ink"), linewidth=1.4, linestyle=":", zorder=2)
    axes.set_ylim(len(rows) - 0.4, -0.9)
    axes.text(1, -0.62, " no draft", va="center", ha="left")
    axes.spines["left"].set_visible(False)
    behind = blended_transform_factory(axes.transAxes, axes.transData)
    for place, row in enumerate(rows):
        slower = row.ratio < 1
        dots = [ratio for ratio in row.each if left < ratio < right]
        axes.plot(
            dots, [place] * len(dots), "o", markersize=3.2, color=sheet.colour("muted"), zorder=2
        )
        ends = None
        if row.interval is not None:
            ends = max(row.interval.low, left), min(row.interval.high, right)
        colour = "s1" if slower else "pick" if row.name == pick else "s0"
        sheet.point(axes, row.ratio, place, sheet.colour(colour), live=row.live, x_ends=ends)
        axes.text(
            1.02,
            place,
            f"{row.ratio:.2f}x",
            transform=behind,
            va="center",
            color=sheet.colour("s1" if slower else "ink"),
            fontweight="bold" if slower or row.name == pick else "normal",
        )
    sheet.rows(axes, [row.name for row in rows], 30, pick)
    sheet.legend_of_kinds(
        axes, live=any(row.live for row in rows), predicted=not all(row.live for row in rows)
    )
