"""Section: speed against draft length, a line a draft."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from cook.record.measured import Figures
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import (
    Basis,
    Scored,
    figures_of,
    finite,
    kind_of,
    named,
    order_of,
    other_settings,
    picked,
    scored,
    value,
)
from cook.report.document import Section, Table, Text

TITLE = "Speed against draft length"
MOST_LINES = 12


@dataclass(frozen=True)
class LengthCurve:
    """One draft with one set of other settings: (n_max, tokens/s) in order of length."""

    name: str
    draft: str
    points: tuple[tuple[int, float], ...]


def section(record: Record) -> Section:
    """Lines of the figure that the recipe maximizes, the pick marked."""
    decode = record.pick.maximize != "end_to_end_speed"
    what = "decode" if decode else "end to end"
    kind = kind_of(record)
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored(record, kind):
        if one.candidate.settings is not None:
            groups[one.draft, other_settings(record, one.candidate)].append(one)
    lines = [
        line
        for (draft, others), found in groups.items()
        if (line := _line(draft, others, found, decode))
    ]
    if not lines:
        return Section("lengths", TITLE, absent="no drafting candidate has a speed")
    lines.sort(key=lambda line: -max(speed for _, speed in line.points))
    base = _baseline(record, kind, decode)
    mark = _mark(record, kind, decode)
    numbers = order_of(record)
    drawn = lines[:MOST_LINES]
    alt = f"{what} speed at each draft length: " + "; ".join(
        f"{line.name} " + ", ".join(f"{n}: {speed:.1f}" for n, speed in line.points)
        for line in drawn[:6]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, drawn, base, mark, numbers, what)

    lengths = sorted({n for line in lines for n, _ in line.points})
    table = Table(
        columns=(("draft", "left"), *((f"n_max {n}", "right") for n in lengths)),
        rows=tuple((line.name, *(_cell(line, n) for n in lengths)) for line in lines),
        title=f"Figures: tokens/s, {what}",
        caption=f"Without a draft: {base:.2f} tokens/s." if base else None,
    )
    notes = (
        [Text(f"Not drawn: {named(x.name for x in lines[MOST_LINES:])}.", quiet=True)]
        if lines[MOST_LINES:]
        else []
    )
    how = "predicted" if kind == "predicted" else "measured live"
    lead = f"Tokens a second {what}, {how}{'; the ring is the pick' if mark else ''}."
    if base:
        lead += " Below the dotted line drafting costs more than it gives."
    plot = Plot("lengths", TITLE, alt + ".", draw)
    return Section("lengths", TITLE, lead, (plot, *notes, table))


def _speed(figures: Figures, decode: bool) -> float | None:
    found = finite(figures.decode_speed if decode else figures.end_to_end_speed)
    return found if found is not None and found > 0 else None


def _line(draft: str, others: str, found: list[Scored], decode: bool) -> LengthCurve | None:
    points = {
        one.candidate.settings.n_max: speed
        for one in found
        if one.candidate.settings and (speed := _speed(one.figures, decode))
    }
    name = f"{draft} {others}".strip()
    return LengthCurve(name, draft, tuple(sorted(points.items()))) if points else None


def _baseline(record: Record, kind: Basis, decode: bool) -> float | None:
    """The fastest no draft of any engine."""
    found = [f for c in record.candidates if c.draft is None and (f := figures_of(c, kind))]
    best = max(found, key=lambda f: value(f, "end_to_end_speed"), default=None)
    return _speed(best, decode) if best else None


def _mark(record: Record, kind: Basis, decode: bool) -> tuple[int, float] | None:
    winner = picked(record)
    found = figures_of(winner, kind) if winner else None
    if winner is None or winner.settings is None or found is None:
        return None
    speed = _speed(found, decode)
    return (winner.settings.n_max, speed) if speed else None


def _cell(line: LengthCurve, n_max: int) -> str | None:
    return next((f"{speed:.2f}" for n, speed in line.points if n == n_max), None)


def _draw(
    sheet: Sheet,
    lines: list[LengthCurve],
    base: float | None,
    mark: tuple[int, float] | None,
    numbers: dict[str, int],
    what: str,
) -> None:
    axes = sheet.axes("draft length, n_max", f"tokens/s {what}")
    several = len({line.draft for line in lines}) < len(lines)
    for index, line in enumerate(lines):
        colour, marker = sheet.series(index if several else numbers.get(line.draft, 0))
        axes.plot(
            [n for n, _ in line.points],
            [speed for _, speed in line.points],
            marker=marker,
            markersize=4.5,
            color=colour,
            linewidth=1.7,
            label=label(line.name, 16 if sheet.narrow else 22),
        )
    if base is not None:
        axes.axhline(base, color=sheet.colour("ink"), linestyle=":", linewidth=1.4)
        axes.annotate(
            "no draft",
            (1, base),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 4),
            textcoords="offset points",
            ha="right",
            color=sheet.colour("ink"),
        )
    if mark is not None:
        sheet.ring(axes, *mark)
    lengths = sorted({n for line in lines for n, _ in line.points})
    if len(lengths) <= 10:
        axes.set_xticks(lengths)
    axes.margins(x=0.07, y=0.1)
    sheet.legend(axes)
