"""Section: acceptance by category of prompt."""

from __future__ import annotations

from collections.abc import Mapping

from cook.record.measured import Figures
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet, label
from cook.report.compared import (
    best_of_each,
    categories_of,
    finite,
    kind_of,
    order_of,
    picked_draft,
)
from cook.report.document import Section, Table

TITLE = "Acceptance by category"
MOST_DRAFTS = 8
MOST_CATEGORIES = 24

Rates = Mapping[str, Mapping[str, Figures]]


def section(record: Record) -> Section:
    """A row a category, a mark a draft, each draft at its best setting."""
    kind = kind_of(record)
    rates: dict[str, dict[str, Figures]] = {}
    for one in best_of_each(record, kind):
        found = {
            category: figures
            for category, figures in categories_of(one.candidate, kind).items()
            if finite(figures.acceptance_rate) is not None
        }
        if found:
            rates[one.draft] = found
    categories = list(dict.fromkeys(c for found in rates.values() for c in found))
    if not categories:
        return Section("category", TITLE, absent="no candidate has counts by category")
    drafts = list(rates)
    best = picked_draft(record)
    drawn = drafts[:MOST_DRAFTS]
    if best in drafts and best not in drawn:
        drawn = [*drawn[:-1], best]
    first = rates[drawn[0]]
    alt = f"Acceptance by category, {drawn[0]}: " + "; ".join(
        f"{c} {_rate(f):.1%}" for c, f in list(first.items())[:10]
    )
    numbers = order_of(record)
    shown = categories[:MOST_CATEGORIES]

    def draw(sheet: Sheet) -> None:
        _draw(sheet, {name: rates[name] for name in drawn}, shown, numbers, best)

    table = Table(
        columns=(("draft", "left"), *((c, "right") for c in categories)),
        rows=tuple((name, *(_cell(rates[name].get(c)) for c in categories)) for name in drafts),
        title="Figures: acceptance, accepted/drafted",
        strong=drafts.index(best) if best in drafts else None,
    )
    height = 110 + 30 * len(shown) + 9 * len(drawn)
    plot = Plot(
        "category", TITLE, alt + ".", draw, height=height, narrow_height=height + 10 * len(drawn)
    )
    how = "from its replay" if kind == "predicted" else "measured live"
    return Section("category", TITLE, f"Each draft at its best setting, {how}.", (plot, table))


def _rate(figures: Figures) -> float:
    return finite(figures.acceptance_rate) or 0.0


def _cell(figures: Figures | None) -> str | None:
    if figures is None:
        return None
    return f"{_rate(figures):.1%} ({figures.accepted}/{figures.drafted})"


def _draw(
    sheet: Sheet, rates: Rates, categories: list[str], numbers: dict[str, int], best: str | None
) -> None:
    axes = sheet.axes("acceptance, %", grid="both")
    step = 0.5 / max(len(rates), 1)
    for index, (name, found) in enumerate(rates.items()):
        colour, marker = sheet.series(numbers.get(name, 0))
        places = [i for i, c in enumerate(categories) if c in found]
        axes.plot(
            [100 * _rate(found[categories[i]]) for i in places],
            [i + (index - (len(rates) - 1) / 2) * step for i in places],
            marker if len(numbers) > 8 else "o",
            color=colour,
            markersize=9 if name == best else 6.5,
            label=label(name, 16 if sheet.narrow else 22),
        )
    axes.set_yticks(
        range(len(categories)), [label(c, 14 if sheet.narrow else 22) for c in categories]
    )
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.margins(x=0.06)
    sheet.legend(axes)
