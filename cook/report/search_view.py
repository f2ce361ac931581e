"""From a search's record to a report's document."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log2
from typing import Any

from cook.record.search_record import Finalist, SearchRecord
from cook.report.canvas import Named, Plot, Sheet
from cook.report.document import (
    Block,
    Code,
    Document,
    Fact,
    Headline,
    Items,
    Section,
    Table,
    figures,
    subtitle,
)
from cook.report.earnings import Earning, earnings
from cook.report.layer_map import LayerCell, map_plot, shade_of
from cook.report.public import public_search
from cook.report.search_show import (
    allocation_answer,
    finalists_table,
    interval_text,
    model_notes,
    spans_table,
)
from cook.report.texts import binary_unit
from cook.units import duration, number, plural, short_size

MOST_LABELS = 12
APART = 0.012
"""Of the largest size: how far apart finalists of one size stand."""
MOST_TIMES = 16.0
"""Times what bits would earn elsewhere, beyond which a map is no darker."""
_LAYERS = re.compile(r" \d+(?:-\d+)?$")


def search_document(record: SearchRecord) -> Document:
    """The whole report of a search, as others may see it."""
    record = public_search(record)
    return Document(
        title=record.recipe,
        subtitle=subtitle(record, record.engine),
        headline=_headline(record),
        sections=(*_sections(record),),
    )


def _headline(record: SearchRecord) -> Headline:
    best = next((f for f in record.finalists if f.name == record.best), None)
    given, prompts = record.finalist("given"), record.prompts
    facts = []
    if best is not None:
        length = number(best.replayed.acceptance_length) or "-"
        asked = f"at most {short_size(record.aim.max_bytes)} was asked for"
        facts = [
            Fact("size", short_size(best.size_bytes) or "", asked),
            Fact("tokens a cycle", length, f"drafts of {record.aim.n_max}"),
        ]
        against = interval_text(best.against_given)
        if against is not None:
            note = f"against {given.name} {against}" if given else against
            facts.append(Fact("over the given", against.partition(" ")[0], note))
    if record.allocation is not None:
        note = "to the least damage there is, by the measured costs"
        facts.append(Fact("gap", f"{record.allocation.gap:.2%}", note))
    judged = f"{plural(len(prompts.verdict), 'prompt')} that the search did not see"
    mixes = plural(len(record.evaluations), "mix", "mixes")
    return Headline(
        title=f"{record.verdict}: {record.best}",
        why=record.sentence,
        facts=tuple(facts),
        command=None,
        command_absent="a search writes a recipe, and `cook build` makes and scores it",
        warnings=len(record.warnings),
        evidence=(
            Fact("judged on", judged),
            Fact("searched on", plural(len(prompts.search), "prompt")),
            Fact("cost", f"{mixes} replayed in {duration(record.seconds)}"),
        ),
    )


def _sections(record: SearchRecord) -> Iterator[Section]:
    front, found = front_plot(record), earnings(record)
    yield _section(
        ("search-front", "Size against acceptance length"),
        "The finalists on prompts that the search did not see, with intervals; filled: the "
        "search's own. Those of one size stand next to each other. The line is the front as "
        "predicted, scaled to these prompts; dotted: the size that was asked for.",
        [front] if front else [],
        absent="no finalist drafted anything",
    )
    yield _section(
        ("finalists", "The finalists"),
        "All on the same prompts, which decided nothing before. Differences are paired by prompt, "
        f"intervals at {record.aim.confidence:.0%}.",
        [finalists_table(record)] if record.finalists else [],
        absent="no mix came to the final",
    )
    maps = [plot for plot in (bits_map(record, found), earning_map(record, found)) if plot]
    yield _section(
        ("spans", "Which spans earn their bits"),
        "A span is the tensors of one kind in a range of layers. Its bits earn the KLD that its "
        "next smaller type would add, a byte, over what more bytes would save elsewhere.",
        [*maps, spans_table(record, found)] if found else [],
        absent="no span of the returned mix was measured",
    )
    warned = [Items(record.warnings, marked=True)] if record.warnings else []
    yield _section(("warnings", "Warnings"), "", warned, absent="there are none")
    notes = (*model_notes(record), *allocation_answer(record))
    yield _section(
        ("models", "How well the search predicts"),
        "Errors are on mixes that nothing was fitted to.",
        [Items(notes)] if notes else [],
        absent="too little was measured to fit anything",
        folded=True,
    )
    yield _section(
        ("front", "The front, size by size"),
        "On the prompts that the search saw.",
        [_front_table(record)] if record.front else [],
        absent="nothing was allocated",
        folded=True,
    )
    yield _section(
        ("evaluations", "Every evaluation"),
        "The reference: every span in the largest type that is offered.",
        [_evaluations_table(record)] if record.evaluations else [],
        absent="nothing was replayed",
        folded=True,
    )
    lines = (
        f"made by `{shlex.join(record.command)}`",
        f"cook {record.cook}, engine {record.engine}: {record.identity.build}",
        f"target {record.target}",
        f"recipe {record.recipe}",
    )
    found_recipe, given = record.found_recipe, record.recipe_text
    texts = ((found_recipe, "The recipe that was found"), (given, "The recipe given"))
    codes = [Code(text, title) for text, title in texts if text]
    yield _section(("provenance", "Where it comes from"), "", [Items(lines), *codes], folded=True)


def _section(
    name: tuple[str, str],
    lead: str,
    blocks: Sequence[Block],
    *,
    absent: str = "",
    folded: bool = False,
) -> Section:
    """A section of ``name``: its id and title; without blocks ``absent`` says why."""
    if not blocks:
        return Section(*name, absent=absent)
    return Section(*name, lead, tuple(blocks), folded=folded)


def _front_table(record: SearchRecord) -> Table:
    titles = ("size", "KLD added", "tokens a cycle, predicted", "replayed", "decode t/s, predicted")
    rows = (
        (
            short_size(p.size_bytes),
            number(p.kld, ".4g"),
            number(p.acceptance_length, ".3f"),
            number(p.replayed.acceptance_length if p.replayed else None, ".3f"),
            number(p.decode_speed, ".1f"),
        )
        for p in record.front
    )
    return figures(titles, rows, title=None)


def _evaluations_table(record: SearchRecord) -> Table:
    changes = "differs from the reference in"
    titles = ("why", changes, "size", "prompts", "tokens a cycle", "KLD")
    rows = (
        (
            f"{one.purpose.replace('_', ' ')}: {one.why}",
            ", ".join(f"{span} {type_name}" for span, type_name in one.mix.items()) or None,
            short_size(one.size_bytes),
            str(one.replayed.prompts),
            number(one.replayed.acceptance_length, ".3f"),
            number(one.replayed.mean_kld, ".4g"),
        )
        for one in record.evaluations
    )
    return figures(titles, rows, title=None, words=(changes,))


def front_plot(record: SearchRecord) -> Plot | None:
    """The front as it is predicted, and the finalists; None where nothing drafted."""
    points = [(f, n) for f in record.finalists if (n := f.replayed.acceptance_length)]
    if not points:
        return None
    unit, word = binary_unit(max(f.size_bytes for f, _ in points))
    places = _apart([f.size_bytes / unit for f, _ in points])
    line = [(size_bytes / unit, length) for size_bytes, length in scaled_front(record)]

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes(f"draft's file, {word}", "tokens a cycle")
        ink, muted, grid = map(sheet.colour, ("ink", "muted", "grid"))
        if line:
            style: Any = {"color": muted, "linewidth": 1.4, "zorder": 1}
            axes.plot(*zip(*line, strict=True), label="the front, predicted", **style)
        axes.axvline(record.aim.max_bytes / unit, color=ink, linestyle=":", linewidth=1.2)
        if record.enough_bytes is not None and line:
            ends = record.enough_bytes / unit, max(line[-1][0], record.enough_bytes / unit)
            text = f"less than {record.aim.margin:.0%} to gain"
            axes.axvspan(*ends, color=grid, alpha=0.45, linewidth=0, zorder=0, label=text)
        families = list(dict.fromkeys(f.family for f, _ in points))
        heights: list[float] = []
        for (finalist, length), x in zip(points, places, strict=True):
            colour, _ = sheet.series(families.index(finalist.family))
            found = finalist.acceptance_length
            ends = (found.low, found.high) if found is not None else (length, length)
            heights += ends
            sheet.point(axes, x, length, colour, live=finalist.family == "found", y_ends=ends)
        axes.margins(x=0.12, y=0.15)
        if line:  # as much of the front as lies about the finalists
            low, high = 0.7 * min(places), 1.5 * max(places)
            heights += [length for size, length in line if low <= size <= high]
            room = 0.1 * (max(heights) - min(heights)) or 0.1
            axes.set(xlim=(low, high), ylim=(min(heights) - room, max(heights) + room))
        sheet.legend(axes)
        named = [
            Named(x, length, finalist.name, finalist.name == record.best)
            for (finalist, length), x in zip(points, places, strict=True)
        ]
        sheet.name(axes, named, MOST_LABELS)

    title = "Acceptance length against size"
    alt = finalists_table(record).only(("mix", "size", "tokens a cycle")).alt(title)
    return Plot("search-front", title, alt, draw, height=360)


def scaled_front(record: SearchRecord) -> list[tuple[int, float]]:
    """(bytes, tokens a cycle) as predicted, by rising size.

    Predictions are of the prompts that the search saw, finalists of others: so the line is scaled
    by what the finalists that were allocated have there, over what is predicted of their sizes.
    """
    import numpy as np

    points = sorted(
        (p.size_bytes, p.acceptance_length) for p in record.front if p.acceptance_length
    )

    def predicted(finalist: Finalist) -> float | None:
        """The length at its size; None outside of the front."""
        if not points or not points[0][0] <= finalist.size_bytes <= points[-1][0] * 1.02:
            return None
        sizes, lengths = (np.array(column) for column in zip(*points, strict=True))
        return float(np.interp(finalist.size_bytes, sizes, lengths))

    allocated = [f for f in record.finalists if f.family in ("found", "kld")]
    pairs = [(f.replayed.acceptance_length, predicted(f)) for f in allocated]
    ratios = [length / there for length, there in pairs if length and there]
    scale = sum(ratios) / len(ratios) if ratios else 1.0
    return [(size_bytes, scale * length) for size_bytes, length in points]


def _apart(places: Sequence[float]) -> list[float]:
    """Points of nearly one size moved a little apart, so that their intervals are all seen; none to
    the right, where they would seem larger than they are allowed to be."""
    step = APART * max(places)
    found = list(places)
    order = sorted(range(len(places)), key=lambda n: -places[n])
    for after, before in pairwise(order):
        found[before] = min(found[before], found[after] - step)
    return found


def bits_map(record: SearchRecord, found: Sequence[Earning]) -> Plot | None:
    """Which type each span of the returned mix has; None where none is known."""
    known = [e for e in found if e.span.elements]
    if not known:
        return None
    title, cells = "Types of the mix that is returned", []
    for earning in _in_order(record, known):
        bpw = 8 * earning.chosen.size_bytes / earning.span.elements
        name = earning.chosen.type
        cells.append(_cell(earning, shade_of(bpw), f"{name}  {bpw:.2f}", name, f"{bpw:.1f}"))
    alt = spans_table(record, known).only(("span", "type", "bpw")).alt(title)
    return map_plot("search-bits", title, alt, [(title, cells)])


def earning_map(record: SearchRecord, found: Sequence[Earning]) -> Plot | None:
    """What each span's bits earn; None where too little was measured."""
    if not any(e.times_price is not None for e in found):
        return None
    title, cells = "What bits earn, over what they would elsewhere", []
    for earning in _in_order(record, found):
        name, times = earning.chosen.type, earning.times_price
        if times is None:
            cells.append(_cell(earning, None, f"{name} is the smallest", "-"))
            continue
        shown = f"{times:.2g}x" if times > 0 else "nothing"
        shade = log2(max(times, 1 / MOST_TIMES))
        cells.append(_cell(earning, shade, f"{name}  {shown}", shown))
    alt = spans_table(record, found).only(("span", "type", "earns")).alt(title)
    ends = -log2(MOST_TIMES) / 2, log2(MOST_TIMES)
    return map_plot("search-earns", title, alt, [(title, cells)], ends)


def _in_order(record: SearchRecord, found: Sequence[Earning]) -> list[Earning]:
    """As the model has them: by the order of the record's spans."""
    order = {span.name: n for n, span in enumerate(record.spans)}
    return sorted(found, key=lambda e: (e.span.first_layer is not None, order[e.span.name]))


def _cell(earning: Earning, shade: float | None, *texts: str) -> LayerCell:
    span = earning.span
    return LayerCell(_LAYERS.sub("", span.name), span.first_layer, span.last_layer, shade, texts)
