"""Sections: the drafts by condition. Acceptance by category of prompt; under the sampling chains
other than the deployed one; with requests in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cook.record.record import ChainFigures, Figures, Record, SampledChain, SlotSpeed
from cook.report.canvas import LEGEND_LABEL, Plot, Sheet, label
from cook.report.compared import (
    at_common_setting,
    drawn,
    kind_of,
    order_of,
    picked,
    picked_draft,
)
from cook.report.document import Block, Cells, Items, Section, figures
from cook.report.speedups import acceptance_error, speed_interval, speedup_text
from cook.report.texts import counts, tokens_per_s, with_error
from cook.units import number, plural

BY_CATEGORY = "Acceptance by category"
MOST_DRAFTS = 8
MOST_CATEGORIES = 24
LEAST_POINTS = 5.0


def acceptance(record: Record) -> Section:
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
        return Section("category", BY_CATEGORY, absent="no candidate has counts by category")
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
    plot = Plot(
        "category", BY_CATEGORY, table.alt(f"{BY_CATEGORY} at {chosen}"), draw, height=height
    )
    how = "as replayed" if kind == "predicted" else "measured live"
    lead = f"Every draft at {chosen}, {how}."
    if any(error is not None for error in errors.values()):
        lead += " Bars are standard errors, by how prompts differ."
    return Section("category", BY_CATEGORY, lead, (plot, table))


OTHER_CHAINS = "Other sampling chains"
LEAD = (
    "Forecast on text that the target wrote under each chain, every draft at the settings that are "
    "best there. The engine accepts a drafted token "
    "where it is the one that the target draws; rejection sampling would accept more of them."
)
COLUMNS = (
    *("candidate", "acceptance, %", "accepted/drafted", "by rejection sampling, %"),
    *("predicted decode t/s", "predicted t/s", "predicted speedup"),
)


def other_chains(record: Record) -> Section:
    """A table a chain."""
    if not record.chains:
        return Section("sampling", OTHER_CHAINS, absent="the recipe names one sampling chain")
    blocks: list[Block] = []
    for chain in record.chains:
        name = _name(record, chain)
        if chain.reason is not None:
            blocks.append(Items((f"{name}: {chain.reason}",), marked=True))
            continue
        rows: list[Cells] = []
        for one in chain.candidates:
            found, error, other = one.figures, acceptance_error(one.prompts), one.rejection
            rate, percent = found.acceptance_rate, 100 * error if error is not None else None
            by_rejection = 100 * other.accepted / other.drafted if other and other.drafted else None
            bare = chain.candidates[0].prompts
            interval = speed_interval(one.prompts, bare, record.pick.confidence)
            gain = speedup_text(speedup(one, chain), interval)
            rows.append(
                (
                    one.name,
                    with_error(100 * rate, percent, 1) if rate else None,
                    counts(found),
                    number(by_rejection, ".1f"),
                    tokens_per_s(found.decode_speed),
                    tokens_per_s(found.end_to_end_speed),
                    gain if one.key.draft is not None else None,
                )
            )
        blocks.append(figures(COLUMNS, rows, title=None, caption=name))
    return Section("sampling", OTHER_CHAINS, LEAD, tuple(blocks))


def chain_answers(record: Record) -> Iterator[str]:
    """What pays under each chain, a line each."""
    for chain in record.chains:
        one, at = best(chain), f"at {_name(record, chain)}"
        gain = speedup(one, chain) if one is not None else None
        if one is None or gain is None:
            yield f"{at}: not forecast: {chain.reason or 'no draft was replayed'}"
            continue
        rate, other = one.figures.acceptance_rate, one.rejection
        text = f"{at}: {'' if gain > 1 else 'not worth it: '}{one.name} {gain:.2f}x no draft end to"
        text += " end, predicted"
        text += f"; {rate:.1%} accepted" if rate is not None else ""
        text += f", {other.accepted / other.drafted:.1%} by rejection sampling" if other else ""
        yield text


def best(chain: SampledChain) -> ChainFigures | None:
    """The fastest draft under ``chain``, end to end; None without one."""
    drafting = [one for one in chain.candidates if one.key.draft is not None]
    return max(drafting, key=lambda one: one.figures.end_to_end_speed or 0.0, default=None)


def speedup(one: ChainFigures, chain: SampledChain) -> float | None:
    """Of the end-to-end speed, over no draft under the same chain."""
    bare = chain.candidates[0].figures.end_to_end_speed
    return one.figures.end_to_end_speed / bare if bare and one.figures.end_to_end_speed else None


def _name(record: Record, chain: SampledChain) -> str:
    several = len({one.engine for one in record.chains}) > 1
    return f"{chain.sampling.chain} on {chain.engine}" if several else chain.sampling.chain


IN_PARALLEL = "Requests in parallel"


def in_parallel(record: Record) -> Section:
    """All slots together at each number of slots: no draft, and the draft at its best length."""
    speeds = [s for s in record.slots if s.predicted_tokens_per_s]
    if not speeds:
        return Section("slots", IN_PARALLEL, absent="the recipe asks for one slot (`score.slots`)")
    bare = {s.slots: s for s in speeds if s.settings is None}
    best = {s.slots: b for s in speeds if (b := best_at(speeds, s.slots)) is not None}
    winner = picked(record)
    own = winner.settings if winner is not None else None
    usual = [s for s in speeds if s.settings is not None and s.settings == own]
    shown = dict.fromkeys((*bare.values(), *best.values(), *usual))
    table = figures(
        (
            *("slots", "candidate", "predicted t/s", "live t/s", "off by"),
            *("speedup predicted", "speedup live", "t/s a client sees"),
        ),
        (
            (
                str(s.slots),
                "no draft" if s.settings is None else f"{s.draft} {_length(s)}",
                number(s.predicted_tokens_per_s, ".1f"),
                number(s.live_tokens_per_s, ".1f"),
                number(s.off_by, "+.1%"),
                number(gain(bare.get(s.slots), s, live=False), ".2f"),
                number(gain(bare.get(s.slots), s, live=True), ".2f"),
                number(s.live_each_tokens_per_s or s.predicted_each_tokens_per_s, ".1f"),
            )
            for s in sorted(shown, key=lambda s: (s.slots, s.settings.n_max if s.settings else 0))
        ),
        title="Figures: all slots together",
        caption="From the first request to the last answer, prompts and waiting included; a client "
        "sees one reply from its first token on.",
    )

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("slots", "tokens/s, all slots")
        for index, (found, name) in enumerate(((best, "with the draft"), (bare, "no draft"))):
            points = sorted((n, s.predicted_tokens_per_s) for n, s in found.items())
            sheet.line(axes, index, points, name)
            for slots, speed in found.items():
                if (live := speed.live_tokens_per_s) is not None:
                    sheet.point(axes, slots, live, sheet.series(index)[0], live=True)
        for slots, speed in best.items():
            at = (slots, speed.predicted_tokens_per_s)
            sheet.write(axes, _length(speed), at, (0, 9), ha="center")
        axes.set_xticks(sorted({*bare, *best}))
        axes.set_ylim(0, None)
        axes.margins(x=0.1, y=0.15)
        sheet.legend(axes)

    plot = Plot("slots", IN_PARALLEL, table.alt("Tokens a second of all slots together"), draw)
    lead = (
        "As many clients as slots, each asking for its next reply at once. Predicted from batches "
        "that several slots make, nothing fitted on such runs; filled points ran live. At each "
        "number of slots the draft length is that which is predicted to be best there."
    )
    return Section("slots", IN_PARALLEL, lead, (plot, *answers(speeds), table))


def best_at(speeds: Sequence[SlotSpeed], slots: int) -> SlotSpeed | None:
    """The draft's predicted best settings at so many slots."""
    drafting = [s for s in speeds if s.slots == slots and s.settings is not None]
    return max(drafting, key=lambda s: s.predicted_tokens_per_s, default=None)


def gain(bare: SlotSpeed | None, one: SlotSpeed, *, live: bool) -> float | None:
    """Times the speed of no draft at as many slots, live over live or predicted over predicted."""
    if bare is None or one.settings is None:
        return None
    ours, base = ((s.live_tokens_per_s if live else s.predicted_tokens_per_s) for s in (one, bare))
    return ours / base if ours is not None and base else None


def answers(speeds: Sequence[SlotSpeed]) -> list[str]:
    """Of each number of slots in a sentence, whether drafting pays there."""
    lines = []
    for slots in sorted({s.slots for s in speeds}):
        bare = next((s for s in speeds if s.slots == slots and s.settings is None), None)
        best = best_at(speeds, slots)
        if best is None:
            continue
        how, ratio = "live", gain(bare, best, live=True)
        if ratio is None:
            how, ratio = "predicted", gain(bare, best, live=False)
        if ratio is not None:
            pays = "drafting pays" if ratio > 1 else "not worth it"
            lines.append(
                f"{plural(slots, 'slot')}: {pays}: {_length(best)} gives {ratio:.2f}x of no "
                f"draft, {how}."
            )
    return lines


def _length(speed: SlotSpeed) -> str:
    return f"n_max={speed.settings.n_max}" if speed.settings is not None else "no draft"
