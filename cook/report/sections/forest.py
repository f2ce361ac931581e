"""Sections: end-to-end speedups with no draft at 1, of each draft and by category of prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cook.record.record import Record
from cook.report.candidates import speeds_table
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import drawn, picked
from cook.report.document import Section, Table, Text, figures
from cook.report.speedups import Speedup, drafts_at_their_best, speed_notes, speedups_by_category
from cook.report.texts import named

MOST_DRAFTS = 16
MOST_CATEGORIES = 24
LEAST_SPAN = 0.2
"""In shares of no draft's speed."""
MOST_SPAN = 1.6
"""Intervals and single requests are cut where they leave the speedups by more than this."""


def by_draft(record: Record) -> Section:
    """A row a draft, fastest first: live filled, predicted hollow."""
    title, drafts = "End-to-end speedup of each draft", drafts_at_their_best(record)
    if not drafts:
        why = "no speed with a draft and without one"
        return Section("speedups", title, absent=why)
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
    under = (Text(" ".join(notes)),) if notes else ()
    plot = _plot("speedups", title, table, rows, pick)
    return Section("speedups", title, lead, (plot, *under, table))


def by_category(record: Record) -> Section:
    """The gain or loss of the pick, or of the fastest draft where none won, in every category."""
    title, winner = "Speedup by category", picked(record)
    order = [winner] if winner is not None and winner.draft is not None else []
    order += [row.candidate for row in drafts_at_their_best(record)]
    gains = next((found for one in order if (found := speedups_by_category(record, one))), None)
    if gains is None:
        return Section("gains", title, absent="no draft has speeds by category")
    each = [(one, f"{sum(r < 1 for r in one.each)}/{len(one.each)}") for one in gains]
    table = figures(
        ("category", "speedup", "requests", "requests slower than no draft"),
        ((one.name, one.text, str(len(one.each)), slower) for one, slower in each),
    )
    losers = [one.name for one in gains if one.ratio < 1]
    candidate = gains[0].candidate
    lead = f"{label(candidate.name, 60)}, {'live' if candidate.live else 'predicted'}, over no "
    lead += "draft on the same requests. "
    if losers:
        lead += f"Slower than no draft on {named(losers)}."
    else:
        lead += "Faster than no draft in every category."
    lead += " A small dot is one request."
    plot = _plot("gains", title, table, gains[:MOST_CATEGORIES], None)
    return Section("gains", title, lead, (plot, table))


def _plot(name: str, title: str, table: Table, rows: Sequence[Speedup], pick: str | None) -> Plot:
    """Rows of ratios to no draft, which is the line at 1; below it, shaded, is slower."""
    spread = [ratio for row in rows for ratio in row.each]
    spread += [end for row in rows if (sure := row.interval) for end in (sure.low, sure.high)]
    low, high = min(1.0, *(row.ratio for row in rows)), max(1.0, *(row.ratio for row in rows))
    low = max(min([low, *spread]), low - MOST_SPAN, 0.0)
    high = min(max([high, *spread]), high + MOST_SPAN)
    room = max((high - low) * 0.05, 0.02)

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("times the end-to-end speed without a draft", grid="x")
        axes.set(xlim=(max(0.0, low - room), high + room), ylim=(len(rows) - 0.4, -0.9))
        sheet.span(axes, "x", LEAST_SPAN)
        left, right = axes.get_xlim()
        axes.axvspan(left, 1, color=sheet.colour("grid"), alpha=0.45, linewidth=0, zorder=0)
        axes.axvline(1, color=sheet.colour("ink"), linewidth=1.4, linestyle=":", zorder=2)
        axes.text(1, -0.62, " no draft", va="center", ha="left")
        axes.spines["left"].set_visible(False)
        dots: Any = {"markersize": 3.2, "color": sheet.colour("muted"), "zorder": 2}
        for place, row in enumerate(rows):
            slower, strong = row.ratio < 1, row.name == pick
            each = [ratio for ratio in row.each if left < ratio < right]
            axes.plot(each, [place] * len(each), "o", **dots)
            ends = None
            if row.interval is not None:
                ends = max(row.interval.low, left), min(row.interval.high, right)
            colour = sheet.colour("s1" if slower else "pick" if strong else "s0")
            sheet.point(axes, row.ratio, place, colour, live=row.live, x_ends=ends)
            how = {"xycoords": ("axes fraction", "data"), "va": "center"}
            how["color"] = sheet.colour("s1" if slower else "ink")
            how["fontweight"] = "bold" if slower or strong else "normal"
            sheet.write(axes, f"{row.ratio:.2f}x", (1, place), (8, 0), **how)
        sheet.rows(axes, [row.name for row in rows], 30, pick)
        kinds = {"live" if row.live else "predicted" for row in rows}
        sheet.legend_of_kinds(axes, sorted(kinds))

    return Plot(name, title, table.alt(title), draw, height=96 + 30 * len(rows))
