"""Section: speed against draft length, a line a draft, with the band that timings cannot tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cook.record.measured import Figures
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import (
    Basis,
    Scored,
    figures_of,
    finite,
    kind_of,
    named,
    not_drawn,
    order_of,
    other_settings,
    picked,
    scored,
    value,
)
from cook.report.document import Section, Text, figures
from cook.report.numbers import number
from cook.report.speedups import base_of, contradicted, speedup

TITLE = "Speed against draft length"
MOST_LINES = 12
ASIDE = 0.3
"""Of a draft length, between live points that would cover each other."""
LEAST_SPAN = 0.2
"""Of the axis, in shares of the fastest."""


@dataclass(frozen=True)
class LivePoint:
    """A live run of a draft at one length; ``ends`` of its speed's interval, tokens/s."""

    length: int
    speed: float
    ends: tuple[float, float] | None
    contradicts: bool


@dataclass(frozen=True)
class LengthCurve:
    """One draft with one set of other settings: (draft length, tokens/s) in order of length."""

    name: str
    draft: str
    points: tuple[tuple[int, float], ...]
    live: tuple[LivePoint, ...] = ()

    @property
    def contradicted(self) -> bool:
        """A live run of it is not where the curve says."""
        return any(point.contradicts for point in self.live)


@dataclass(frozen=True)
class Levels:
    """Speeds across the plot: no draft's, and the band below the fastest that noise fills."""

    base: float | None
    live_base: float | None
    """The live one beside a predicted one, where the two differ beyond the interval."""
    fastest: float
    noise: float | None = None
    """Share by which two timings of one file differ."""
    lengths: tuple[int, ...] = field(default=())


def section(record: Record) -> Section:
    """Lines of the speed that the recipe maximizes; live runs are filled points on them."""
    decode = record.pick.maximize != "end_to_end_speed"
    what = "decode" if decode else "end to end"
    kind = kind_of(record)
    lines = _lines(record, kind, decode)
    if not lines:
        return Section("lengths", TITLE, absent="no drafting candidate has a speed")
    levels = _levels(record, kind, decode, lines)
    mark = _mark(record, kind, decode)
    numbers = order_of(record)
    shown = lines[:MOST_LINES]
    alt = f"{what} speed at each draft length: " + "; ".join(
        f"{line.name} " + ", ".join(f"{n}: {speed:.1f}" for n, speed in line.points)
        for line in shown[:6]
    )

    def draw(sheet: Sheet) -> None:
        _draw(sheet, shown, levels, mark, numbers, what)

    table = figures(
        ("draft", *map(str, levels.lengths)),
        (
            (line.name, *(number(dict(line.points).get(n), ".2f") for n in levels.lengths))
            for line in lines
        ),
        title=f"Figures: {kind} tokens/s {what}, by draft length",
        caption=f"Without a draft: {levels.base:.2f} tokens/s." if levels.base else None,
    )
    notes = [Text(told, quiet=True) for told in _notes(record, lines)]
    notes += not_drawn([line.name for line in lines], {line.name for line in shown})
    plot = Plot("lengths", TITLE, alt + ".", draw, height=350, narrow_height=330)
    lead = _lead(kind, what, levels, lines, marked=mark is not None)
    return Section("lengths", TITLE, lead, (plot, *notes, table))


def lengths_that_would_do(record: Record) -> tuple[int, ...] | None:
    """Lengths of the pick's draft that timings cannot tell from its best; None if not known."""
    winner = picked(record)
    decode = record.pick.maximize != "end_to_end_speed"
    kind = kind_of(record)
    noise = _noise(record)
    if winner is None or winner.settings is None or noise is None:
        return None
    mine = [
        (one.candidate.settings.n_max, speed)
        for one in scored(record, kind)
        if one.candidate.draft == winner.draft
        and one.candidate.engine == winner.engine
        and one.candidate.settings is not None
        and replace(one.candidate.settings, n_max=winner.settings.n_max) == winner.settings
        and one.candidate.cache_type == winner.cache_type
        and (speed := _speed(one.figures, decode)) is not None
    ]
    if len(mine) < 2:
        return None
    fastest = max(speed for _, speed in mine)
    return tuple(sorted(n for n, speed in mine if speed >= fastest * (1 - noise)))


def _noise(record: Record) -> float | None:
    found = [s for floor in record.noise if (s := finite(floor.speed)) is not None]
    return max(found) if found and max(found) < 1 else None


def _lead(
    kind: Basis, what: str, levels: Levels, lines: Sequence[LengthCurve], *, marked: bool
) -> str:
    how = "predicted" if kind == "predicted" else "measured live"
    lead = f"Tokens a second {what}, {how}{'; the ring is the pick' if marked else ''}."
    if kind == "predicted" and any(line.live for line in lines):
        lead += " Filled points ran live."
    if levels.noise:
        lead += (
            f" In the band nothing is told from the fastest: two timings of one file differ by up "
            f"to {levels.noise:.1%}."
        )
    if levels.base:
        lead += " Below the dotted line drafting costs more than it gives."
    return lead


def _notes(record: Record, lines: Sequence[LengthCurve]) -> list[str]:
    wrong = [line.name for line in lines if line.contradicted]
    base = base_of(record, "live")
    told = []
    if wrong:
        told.append(
            f"Live runs contradict the curves of {named(wrong)} (dashed): their live points lie "
            "beyond the forecast's interval. Trust the points."
        )
    if base is not None and contradicted(base):
        told.append(
            "The speed without a draft was mispredicted, too: compare live points with the live "
            "line."
        )
    return told


def _lines(record: Record, kind: Basis, decode: bool) -> list[LengthCurve]:
    groups: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored(record, kind):
        if one.candidate.settings is not None:
            groups[one.draft, other_settings(record, one.candidate)].append(one)
    lines = [
        line
        for (draft, others), found in groups.items()
        if (line := _line(record, draft, others, found, decode))
    ]
    return sorted(lines, key=lambda line: -max(speed for _, speed in line.points))


def _speed(figures: Figures, decode: bool) -> float | None:
    found = finite(figures.decode_speed if decode else figures.end_to_end_speed)
    return found if found is not None and found > 0 else None


def _line(
    record: Record, draft: str, others: str, found: list[Scored], decode: bool
) -> LengthCurve | None:
    points = {
        one.candidate.settings.n_max: speed
        for one in found
        if one.candidate.settings and (speed := _speed(one.figures, decode))
    }
    live = tuple(
        LivePoint(
            one.candidate.settings.n_max,
            speed,
            None if decode else _ends(record, one, speed),
            contradicted(one.candidate),
        )
        for one in found
        if one.candidate.settings
        and one.candidate.live is not None
        and (speed := _speed(one.candidate.live, decode))
    )
    name = f"{draft} {others}".strip()
    return LengthCurve(name, draft, tuple(sorted(points.items())), live) if points else None


def _ends(record: Record, one: Scored, speed: float) -> tuple[float, float] | None:
    """The live speed's interval, from that of its speedup."""
    found = speedup(record, one.candidate, "live")
    if found is None or found.interval is None:
        return None
    return speed * found.interval.low / found.ratio, speed * found.interval.high / found.ratio


def _levels(record: Record, kind: Basis, decode: bool, lines: Sequence[LengthCurve]) -> Levels:
    return Levels(
        base=_baseline(record, kind, decode),
        live_base=_baseline(record, "live", decode)
        if kind == "predicted" and (bare := base_of(record, "live")) and contradicted(bare)
        else None,
        fastest=max(speed for line in lines for _, speed in line.points),
        noise=_noise(record),
        lengths=tuple(sorted({n for line in lines for n, _ in line.points})),
    )


def _baseline(record: Record, kind: Basis, decode: bool) -> float | None:
    """The fastest no draft of any engine."""
    found = [f for c in record.candidates if c.draft is None and (f := figures_of(c, kind))]
    best = max(found, key=lambda f: value(f, "end_to_end_speed"), default=None)
    return _speed(best, decode) if best else None


def _mark(record: Record, kind: Basis, decode: bool) -> tuple[int, float] | None:
    winner = picked(record)
    found = (winner.live or figures_of(winner, kind)) if winner else None
    if winner is None or winner.settings is None or found is None:
        return None
    speed = _speed(found, decode)
    return (winner.settings.n_max, speed) if speed else None


def _draw(
    sheet: Sheet,
    lines: Sequence[LengthCurve],
    levels: Levels,
    mark: tuple[int, float] | None,
    numbers: dict[str, int],
    what: str,
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = sheet.axes("draft length (tokens drafted a cycle at most)", f"tokens/s {what}")
    several = len({line.draft for line in lines}) < len(lines)
    if levels.noise:
        axes.axhspan(
            levels.fastest * (1 - levels.noise),
            levels.fastest,
            color=sheet.colour("grid"),
            alpha=0.7,
            linewidth=0,
            zorder=0,
        )
    beside: Counter[int] = Counter()
    for index, line in enumerate(lines):
        series = index if several else numbers.get(line.draft, 0)
        colour, marker = sheet.series(series)
        axes.plot(
            [x for x, _ in line.points],
            [y for _, y in line.points],
            marker=marker,
            markersize=3.5,
            color=colour,
            linewidth=1.6,
            linestyle=(0, (4, 2)) if line.contradicted else "-",
            label=sheet.short(line.name),
        )
        for point in line.live:
            # Beside each other where several ran at one length; the pick's stays in its ring.
            aside = 0.0
            if mark != (point.length, point.speed):
                beside[point.length] += 1
                aside = ASIDE * (-1) ** beside[point.length] * ((beside[point.length] + 1) // 2)
            x = point.length + aside
            sheet.point(axes, x, point.speed, colour, live=True, y_ends=point.ends)
    if levels.base is not None:
        how = ", predicted" if levels.live_base is not None else ""
        sheet.level(axes, levels.base, f"no draft{how}")
    if levels.live_base is not None:
        sheet.level(axes, levels.live_base, "no draft, live")
    if mark is not None:
        sheet.ring(axes, *mark)
    if len(levels.lengths) <= 10:
        axes.set_xticks(levels.lengths)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.07, y=0.1)
    sheet.span(axes, "y", LEAST_SPAN * levels.fastest)
    sheet.legend(axes)
