"""Section: speed against draft length, a line a draft."""

from __future__ import annotations

from collections import Counter

from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import draft_label, not_drawn, order_of, other_settings, picked
from cook.report.document import Section, figures
from cook.report.sections.tables import REPLAYED
from cook.report.speedups import DECODE, WHOLE, Speed, base_of, speed_of
from cook.report.texts import tokens_per_s

TITLE = "Speed against draft length"
MOST_LINES = 12
ASIDE = 0.3
"""Of a draft length, between live points that would cover each other."""
LEAST_SPAN = 0.2
"""Of the axis, in shares of the fastest."""


def section(record: Record) -> Section:
    """Lines of the speed that the recipe maximizes; live runs are filled points on them."""
    objective = WHOLE if record.pick.maximize == WHOLE.value else DECODE
    what = "end to end" if objective is WHOLE else "decode"
    found: dict[str, dict[int, Speed]] = {}  # draft with its other settings -> length -> its speed
    for one in record.candidates:
        speed = speed_of(record, one, objective)
        if one.draft is not None and one.settings is not None and speed is not None:
            draft = draft_label(record, one.draft, one.engine)
            name = f"{draft} {other_settings(record, one)}".strip()
            found.setdefault(name, {})[one.settings.n_max] = speed
    if not found:
        return Section("lengths", TITLE, absent="no drafting candidate has a speed")
    fastest = {name: max(s.tokens_per_s for s in points.values()) for name, points in found.items()}
    curves = {name: found[name] for name in sorted(found, key=lambda n: -fastest[n])}
    bare, winner = base_of(record), picked(record)
    base = speed_of(record, bare, objective) if bare is not None else None
    own = speed_of(record, winner, objective) if winner is not None else None
    settings = winner.settings if winner is not None else None
    mark = (settings.n_max, own.tokens_per_s) if settings is not None and own is not None else None
    lengths = sorted({length for points in curves.values() for length in points})
    cells = {
        (name, n): f"{'' if speed.live else REPLAYED}{tokens_per_s(speed.tokens_per_s)}"
        for name, points in curves.items()
        for n, speed in points.items()
    }
    table = figures(
        ("draft", *map(str, lengths)),
        ((name, *(cells.get((name, n)) for n in lengths)) for name in curves),
        title=f"Figures: tokens/s {what}, by draft length ({REPLAYED} predicted)",
        caption=f"Without a draft: {tokens_per_s(base.tokens_per_s)} tokens/s." if base else None,
    )
    shown = [*curves][:MOST_LINES]
    numbers = order_of(record)  # one colour a draft in every plot, where a line is a draft
    if not numbers.keys() >= {*shown}:
        numbers = {name: index for index, name in enumerate(shown)}

    def draw(sheet: Sheet) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = sheet.axes("draft length (tokens drafted a cycle at most)", f"tokens/s {what}")
        at_length: Counter[int] = Counter()
        for name in shown:
            points = sorted((n, speed.tokens_per_s) for n, speed in curves[name].items())
            sheet.line(axes, numbers[name], points, name)
            colour, _ = sheet.series(numbers[name])
            for length, speed in curves[name].items():
                # Next to each other where several ran at one length; the pick's is in its ring.
                aside = 0.0
                if speed.live and mark != (length, speed.tokens_per_s):
                    at_length[length] += 1
                    aside = ASIDE * (-1) ** at_length[length] * ((at_length[length] + 1) // 2)
                if speed.live:
                    sheet.point(axes, length + aside, speed.tokens_per_s, colour, live=True)
        if base is not None:
            sheet.level(axes, base.tokens_per_s, "no draft")
        if mark is not None:
            sheet.ring(axes, *mark)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.07, y=0.1)
        sheet.span(axes, "y", LEAST_SPAN * fastest[shown[0]])
        sheet.legend(axes)

    plot = Plot("lengths", TITLE, table.alt(f"Tokens/s {what} at each draft length"), draw, 350)
    lead = f"Tokens a second {what}{'; the ring is the pick' if mark is not None else ''}."
    if not all(speed.live for points in curves.values() for speed in points.values()):
        lead += " Filled points ran live, the others are predicted."
    if base is not None:
        lead += " Below the dotted line drafting costs more than it gives."
    return Section("lengths", TITLE, lead, (plot, *not_drawn([*curves], shown), table))
