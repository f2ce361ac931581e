"""Section: acceptance by category of prompt."""

from __future__ import annotations

from collections.abc import Mapping

from cook.record.measured import Figures
from cook.record.record import Record
from cook.report.canvas import Plot, Sheet
from cook.report.compared import (
    HOW,
    at_common_setting,
    categories_of,
    drawn,
    finite,
    kind_of,
    order_of,
    picked_draft,
    prompts_of,
)
from cook.report.document import Section, figures
from cook.report.numbers import counts
from cook.report.ratios import acceptance_error

TITLE = "Acceptance by category"
MOST_DRAFTS = 8
MOST_CATEGORIES = 24
LEAST_POINTS = 5.0

Rates = Mapping[str, Mapping[str, Figures]]


def section(record: Record) -> Section:
    """A row a category, a mark a draft, all drafts at one setting: acceptance falls with length."""
    kind = kind_of(record)
    rates: dict[str, dict[str, Figures]] = {}
    errors: dict[tuple[str, str], float] = {}
    chosen, every = at_common_setting(record, kind)
    for one in every:
        found = {
            category: figures
            for category, figures in categories_of(one.candidate, kind).items()
            if finite(figures.acceptance_rate) is not None
        }
        if found:
            rates[one.draft] = found
        for category in found:
            error = acceptance_error(prompts_of(one.candidate, kind), category)
            if error is not None:
                errors[one.draft, category] = error
    categories = list(dict.fromkeys(c for found in rates.values() for c in found))
    if not categories:
        return Section("category", TITLE, absent="no candidate has counts by category")
    drafts = list(rates)
    best = picked_draft(record)
    shown = {name: rates[name] for name in drawn(drafts, MOST_DRAFTS, best)}
    first, figures_of_first = next(iter(shown.items()))
    alt = f"Acceptance by category at {chosen}, {first}: " + "; ".join(
        f"{c} {_rate(f):.1%}" for c, f in list(figures_of_first.items())[:10]
    )
    numbers = order_of(record)
    rows = categories[:MOST_CATEGORIES]

    def draw(sheet: Sheet) -> None:
        _draw(sheet, shown, errors, rows, numbers, best)

    table = figures(
        ("draft", *categories),
        ((name, *(_cell(rates[name].get(c)) for c in categories)) for name in drafts),
        title="Figures: acceptance, accepted/drafted",
        pick=best,
    )
    height = 110 + 30 * len(rows) + 9 * len(shown)
    plot = Plot(
        "category", TITLE, alt + ".", draw, height=height, narrow_height=height + 10 * len(shown)
    )
    lead = f"Every draft at {chosen}, {HOW[kind]}."
    if errors:
        lead += " Bars are standard errors, by how prompts differ."
    return Section("category", TITLE, lead, (plot, table))


def _rate(figures: Figures) -> float:
    return finite(figures.acceptance_rate) or 0.0


def _cell(found: Figures | None) -> str | None:
    return f"{_rate(found):.1%} ({counts(found)})" if found else None


def _draw(
    sheet: Sheet,
    rates: Rates,
    errors: Mapping[tuple[str, str], float],
    categories: list[str],
    numbers: dict[str, int],
    best: str | None,
) -> None:
    axes = sheet.axes("acceptance, %", grid="both")
    step = 0.5 / max(len(rates), 1)
    for index, (name, found) in enumerate(rates.items()):
        colour, marker = sheet.series(numbers.get(name, 0))
        places = [i for i, c in enumerate(categories) if c in found]
        axes.errorbar(
            [100 * _rate(found[categories[i]]) for i in places],
            [i + (index - (len(rates) - 1) / 2) * step for i in places],
            xerr=[100 * errors.get((name, categories[i]), 0.0) for i in places],
            fmt=marker if len(numbers) > 8 else "o",
            color=colour,
            elinewidth=1.0,
            markersize=9 if name == best else 6.5,
            label=sheet.short(name),
        )
    sheet.rows(axes, categories, 14 if sheet.narrow else 22)
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.margins(x=0.06)
    sheet.span(axes, "x", LEAST_POINTS)
    sheet.legend(axes)
