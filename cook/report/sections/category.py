"""Section: acceptance by category of prompt."""

from __future__ import annotations

from cook.record.record import Figures, Record
from cook.report.canvas import LEGEND_LABEL, Plot, Sheet, label
from cook.report.compared import at_common_setting, drawn, kind_of, order_of, picked_draft
from cook.report.document import Section, figures
from cook.report.speedups import acceptance_error
from cook.report.texts import counts

TITLE = "Acceptance by category"
MOST_DRAFTS = 8
MOST_CATEGORIES = 24
LEAST_POINTS = 5.0


def section(record: Record) -> Section:
    """A row a category, a mark a draft, all drafts at one setting: acceptance falls with length."""
    kind = kind_of(record)
    chosen, every = at_common_setting(record, kind)
    rates: dict[str, dict[str, Figures]] = {}
    errors: dict[tuple[str, str], float | None] = {}
    for one in every:
        for name, found in one.categories.items():
            if found.acceptance_rate is not None:
                rates.setdefault(one.draft, {})[name] = found
                errors[one.draft, name] = acceptance_error(one.prompts, name)
    categories = list(dict.fromkeys(name for found in rates.values() for name in found))
    if not categories:
        return Section("category", TITLE, absent="no candidate has counts by category")
    best, order = picked_draft(record), order_of(record)
    cells = {
        (draft, name): f"{found.acceptance_rate:.1%} ({counts(found)})"
        for draft, by_name in rates.items()
        for name, found in by_name.items()
    }
    table = figures(
        ("draft", *categories),
        ((draft, *(cells.get((draft, c)) for c in categories)) for draft in rates),
        title="Figures: acceptance, accepted/drafted",
        pick=best,
    )
    drafts = drawn([*rates], MOST_DRAFTS, best)
    rows = categories[:MOST_CATEGORIES]

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("acceptance, %")
        step = 0.5 / len(drafts)
        for index, draft in enumerate(drafts):
            colour, marker = sheet.series(order.get(draft, 0))
            aside = (index - (len(drafts) - 1) / 2) * step
            there = [(place, name) for place, name in enumerate(rows) if name in rates[draft]]
            axes.errorbar(
                [100 * (rates[draft][name].acceptance_rate or 0.0) for _, name in there],
                [place + aside for place, _ in there],
                xerr=[100 * (errors[draft, name] or 0.0) for _, name in there],
                fmt=marker if len(order) > 8 else "o",
                color=colour,
                elinewidth=1.0,
                markersize=9 if draft == best else 6.5,
                label=label(draft, LEGEND_LABEL),
            )
        sheet.rows(axes, rows, 20)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.margins(x=0.06)
        sheet.span(axes, "x", LEAST_POINTS)
        sheet.legend(axes)

    height = 110 + 30 * len(rows) + 9 * len(drafts)
    plot = Plot("category", TITLE, table.alt(f"{TITLE} at {chosen}"), draw, height=height)
    how = "as replayed" if kind == "predicted" else "measured live"
    lead = f"Every draft at {chosen}, {how}."
    if any(error is not None for error in errors.values()):
        lead += " Bars are standard errors, by how prompts differ."
    return Section("category", TITLE, lead, (plot, table))
