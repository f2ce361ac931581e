"""Section: speed against draft length, a line a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cook.record.objective import Objective
from cook.record.record import Candidate, Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import draft_label, not_drawn, order_of, other_settings, picked
from cook.report.document import Section, figures
from cook.report.numbers import tokens_per_s
from cook.report.speedups import DECODE, WHOLE, Speed, base_of, speed_of
from cook.report.table import REPLAYED

TITLE = "Speed against draft length"
MOST_LINES = 12
ASIDE = 0.3
"""Of a draft length, between live points that would cover each other."""
LEAST_SPAN = 0.2
"""Of the axis, in shares of the fastest."""


@dataclass(frozen=True)
class LengthCurve:
    """One draft with one set of other settings: (draft length, its speed) in order of length."""

    name: str
    draft: str
    points: tuple[tuple[int, Speed], ...]

    @property
    def fastest(self) -> float:
        """Tokens/s."""
        return max(speed.tokens_per_s for _, speed in self.points)


def section(record: Record) -> Section:
    """Lines of the speed that the recipe maximizes; live runs are filled points on them."""
    objective = WHOLE if record.pick.maximize == WHOLE.value else DECODE
    what = "end to end" if objective is WHOLE else "decode"
    lines = _lines(record, objective)
    if not lines:
        return Section("lengths", TITLE, absent="no drafting candidate has a speed")
    bare = base_of(record)
    base = speed_of(record, bare, objective) if bare is not None else None
    numbers = order_of(record)
    shown = lines[:MOST_LINES]
    lengths = sorted({n for line in lines for n, _ in line.points})
    every = [speed for line in lines for _, speed in line.points]
    alt = f"{what} speed at each draft length: " + "; ".join(
        f"{line.name} " + ", ".join(f"{n}: {s.tokens_per_s:.1f}" for n, s in line.points)
        for line in shown[:6]
    )
    winner = picked(record)
    own = speed_of(record, winner, objective) if winner is not None else None
    settings = winner.settings if winner is not None else None
    mark = (settings.n_max, own.tokens_per_s) if settings is not None and own is not None else None

    def draw(sheet: Sheet) -> None:
        _draw(sheet, shown, base.tokens_per_s if base else None, mark, numbers, what)

    table = figures(
        ("draft", *map(str, lengths)),
        ((line.name, *(_cell(dict(line.points).get(n)) for n in lengths)) for line in lines),
        title=f"Figures: tokens/s {what}, by draft length ({REPLAYED} predicted)",
        caption=f"Without a draft: {tokens_per_s(base.tokens_per_s)} tokens/s." if base else None,
    )
    plot = Plot("lengths", TITLE, alt + ".", draw, height=350, narrow_height=330)
    lead = f"Tokens a second {what}{'; the ring is the pick' if mark is not None else ''}."
    if not all(speed.live for speed in every):
        lead += " Filled points ran live, the others are predicted."
    if base is not None:
        lead += " Below the dotted line drafting costs more than it gives."
    notes = not_drawn([line.name for line in lines], {line.name for line in shown})
    return Section("lengths", TITLE, lead, (plot, *notes, table))


def lengths_that_would_do(record: Record, winner: Candidate) -> tuple[int, ...]:
    """Other lengths of the pick's draft that may be within the margin of the best."""
    if winner.settings is None:
        return ()
    found = [
        one.settings.n_max
        for one in record.candidates
        if one.settings is not None
        and one.name != winner.name
        and replace(one.key, settings=winner.settings) == winner.key
        and replace(one.settings, n_max=winner.settings.n_max) == winner.settings
        and record.pick.within.get(one.name, 0.0) > 1 - record.pick.confidence
    ]
    return tuple(sorted(found))


def _cell(speed: Speed | None) -> str | None:
    if speed is None:
        return None
    return f"{'' if speed.live else REPLAYED}{tokens_per_s(speed.tokens_per_s)}"


def _lines(record: Record, objective: Objective) -> list[LengthCurve]:
    groups: dict[tuple[str, str], dict[int, Speed]] = {}
    for one in record.candidates:
        speed = speed_of(record, one, objective)
        if one.draft is not None and one.settings is not None and speed is not None:
            draft = draft_label(record, one.draft, one.engine)
            line = groups.setdefault((draft, other_settings(record, one)), {})
            line[one.settings.n_max] = speed
    lines = [
        LengthCurve(f"{draft} {others}".strip(), draft, tuple(sorted(points.items(), key=_length)))
        for (draft, others), points in groups.items()
    ]
    return sorted(lines, key=lambda line: -line.fastest)


def _length(point: tuple[int, Speed]) -> int:
    return point[0]


def _draw(
    sheet: Sheet,
    lines: Sequence[LengthCurve],
    base: float | None,
    mark: tuple[int, float] | None,
    numbers: dict[str, int],
    what: str,
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = sheet.axes("draft length (tokens drafted a cycle at most)", f"tokens/s {what}")
    several = len({line.draft for line in lines}) < len(lines)
    beside: Counter[int] = Counter()
    for index, line in enumerate(lines):
        colour, marker = sheet.series(index if several else numbers.get(line.draft, 0))
        axes.plot(
            [n for n, _ in line.points],
            [speed.tokens_per_s for _, speed in line.points],
            marker=marker,
            markersize=3.5,
            color=colour,
            linewidth=1.6,
            label=sheet.short(line.name),
        )
        for length, speed in line.points:
            if not speed.live:
                continue
            # Next to each other where several ran at one length; the pick's stays in its ring.
            aside = 0.0
            if mark != (length, speed.tokens_per_s):
                beside[length] += 1
                aside = ASIDE * (-1) ** beside[length] * ((beside[length] + 1) // 2)
            sheet.point(axes, length + aside, speed.tokens_per_s, colour, live=True)
    if base is not None:
        sheet.level(axes, base, "no draft")
    if mark is not None:
        sheet.ring(axes, *mark)
    lengths = sorted({n for line in lines for n, _ in line.points})
    if len(lengths) <= 10:
        axes.set_xticks(lengths)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.07, y=0.1)
    sheet.span(axes, "y", LEAST_SPAN * max(line.fastest for line in lines))
    sheet.legend(axes)
