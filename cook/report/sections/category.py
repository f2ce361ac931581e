"""Section: acceptance by category of prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cook.record.measured import Figures
from cook.record.record import Record
from cook.report.canvas import LEGEND_LABEL, Plot, Sheet, label
from cook.report.compared import (
    HOW,
    at_common_setting,
    drawn,
    finite,
    kind_of,
    order_of,
    picked_draft,
)
from cook.report.document import Section, figures
from cook.report.numbers import counts
from cook.report.ratios import acceptance_error

TITLE = "Acceptance by category"
MOST_DRAFTS = 8
MOST_CATEGORIES = 24
LEAST_POINTS = 5.0

Rates = Mapping[str, tuple[Figures, float | None]]
"""By category, with the standard error of acceptance as a share."""


def section(record: Record) -> Section:
    """A row a category, a mark a draft, all drafts at one setting: acceptance falls with length."""
    kind = kind_of(record)
    chosen, every = at_common_setting(record, kind)
    rates: dict[str, Rates] = {
        one.draft: {
            name: (found, acceptance_error(one.prompts, name))
            for name, found in one.categories.items()
            if finite(found.acceptance_rate) is not None
        }
        for one in every
    }
    rates = {draft: found for draft, found in rates.items() if found}
    categories = list(dict.fromkeys(name for found in rates.values() for name in found))
    if not categories:
        return Section("category", TITLE, absent="no candidate has counts by category")
    best = picked_draft(record)
    table = figures(
        ("draft", *categories),
        ((draft, *(_cell(found, c) for c in categories)) for draft, found in rates.items()),
        title="Figures: acceptance, accepted/drafted",
        pick=best,
    )
    shown = {draft: rates[draft] for draft in drawn(list(rates), MOST_DRAFTS, best)}
    rows = categories[:MOST_CATEGORIES]

    def draw(sheet: Sheet) -> None:
        _draw(sheet, shown, rows, order_of(record), best)

    height = 110 + 30 * len(rows) + 9 * len(shown)
    plot = Plot("category", TITLE, table.alt(f"{TITLE} at {chosen}"), draw, height=height)
    lead = f"Every draft at {chosen}, {HOW[kind]}."
    if any(error is not None for found in rates.values() for _, error in found.values()):
        lead += " Bars are standard errors, by how prompts differ."
    return Section("category", TITLE, lead, (plot, table))


def _cell(rates: Rates, category: str) -> str | None:
    if category not in rates:
        return None
    found, _ = rates[category]
    return f"{found.acceptance_rate:.1%} ({counts(found)})"


def _draw(
    sheet: Sheet,
    rates: Mapping[str, Rates],
    categories: Sequence[str],
    numbers: Mapping[str, int],
    best: str | None,
) -> None:
    axes = sheet.axes("acceptance, %")
    step = 0.5 / max(len(rates), 1)
    for index, (draft, found) in enumerate(rates.items()):
        colour, marker = sheet.series(numbers.get(draft, 0))
        aside = (index - (len(rates) - 1) / 2) * step
        places = [place for place, name in enumerate(categories) if name in found]
        shares = [found[categories[place]] for place in places]
        axes.errorbar(
            [100 * (one.acceptance_rate or 0.0) for one, _ in shares],
            [place + aside for place in places],
            xerr=[100 * (error or 0.0) for _, error in shares],
            fmt=marker if len(numbers) > 8 else "o",
            color=colour,
            elinewidth=1.0,
            markersize=9 if draft == best else 6.5,
            label=label(draft, LEGEND_LABEL),
        )
    sheet.rows(axes, categories, 20)
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.margins(x=0.06)
    sheet.span(axes, "x", LEAST_POINTS)
    sheet.legend(axes)
