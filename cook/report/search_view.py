"""A search's record as it is shown: what is printed at its end (the finalists, the verdict, which
spans earn their bits, what a reader asks next), and a report's document.

What a span earns: what it saves in its next smaller type, and what that costs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, Any, Literal

from cook.record.search_record import Finalist, SearchedSpan, SearchRecord, TypeEffect
from cook.report.canvas import LayerCell, Named, Plot, Sheet, map_plot, shade_of
from cook.report.document import (
    Block,
    Cells,
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
from cook.report.public import public_search
from cook.report.show import Shown
from cook.report.texts import binary_unit
from cook.units import duration, number, plural, short_size

if TYPE_CHECKING:
    from cook.record.search_record import Effect, SearchRecord


NEXT = 0.02
"""Of the mix's bytes: what the price of a byte is taken over; no one small span makes it."""


@dataclass(frozen=True)
class Earning:
    """One span of the mix that is returned, between its next smaller and its next larger type.

    Types of which no KLD is known are passed over. ``share``: of the mix's bytes. The next smaller
    type would save ``saved_bytes``, add ``kld_more`` nats and, as the two types were replayed
    alone, cost ``length_less`` tokens a cycle. ``times_price``: ``kld_per_byte`` over the nats a
    byte that as many more bytes as :data:`NEXT` would save where they save most; below 1 the span's
    bits would be better placed there.
    """

    span: SearchedSpan
    chosen: TypeEffect
    smaller: TypeEffect | None
    larger: TypeEffect | None
    share: float
    saved_bytes: int | None
    kld_more: float | None
    length_less: float | None
    kld_per_byte: float | None
    times_price: float | None


def earnings(record: SearchRecord) -> tuple[Earning, ...]:
    """Spans of the mix that is returned, those whose bytes earn most first."""
    found: list[tuple[SearchedSpan, TypeEffect, TypeEffect | None, TypeEffect | None]] = []
    for span in record.spans:  # with its type, the next smaller and the next larger
        chosen = next((t for t in span.types if t.type == span.chosen), None)
        if chosen is None:  # it was split into others, or is of a type that was not asked about
            continue
        known = sorted((t for t in span.types if t.kld is not None), key=lambda t: t.size_bytes)
        below = [t for t in known if t.size_bytes < chosen.size_bytes]
        above = [t for t in known if t.size_bytes > chosen.size_bytes]
        found.append((span, chosen, below[-1] if below else None, above[0] if above else None))
    total = sum(chosen.size_bytes for _, chosen, _, _ in found)
    steps = []
    for _, chosen, _, larger in found:
        added = _difference(larger, chosen, "kld")
        if larger is not None and added is not None and added < 0:
            steps.append((-added, larger.size_bytes - chosen.size_bytes))
    saved_nats, taken = 0.0, 0
    for nats, size_bytes in sorted(steps, key=lambda step: -step[0] / step[1]):
        if taken < NEXT * total:
            saved_nats, taken = saved_nats + nats, taken + size_bytes
    price = saved_nats / taken if taken else None
    every = []
    for span, chosen, smaller, larger in found:
        saved = None if smaller is None else chosen.size_bytes - smaller.size_bytes
        more = _difference(smaller, chosen, "kld")
        per_byte = more / saved if more is not None and saved else None
        every.append(
            Earning(
                span=span,
                chosen=chosen,
                smaller=smaller,
                larger=larger,
                share=chosen.size_bytes / (total or 1),
                saved_bytes=saved,
                kld_more=more,
                length_less=_difference(chosen, smaller, "acceptance_length"),
                kld_per_byte=per_byte,
                times_price=None if per_byte is None or price is None else per_byte / price,
            )
        )
    return tuple(sorted(every, key=lambda e: (e.kld_per_byte is None, -(e.kld_per_byte or 0.0))))


def _difference(
    one: TypeEffect | None, other: TypeEffect | None, name: Literal["kld", "acceptance_length"]
) -> float | None:
    mine, theirs = (getattr(e, name) if e is not None else None for e in (one, other))
    return mine.value - theirs.value if mine is not None and theirs is not None else None


MADE_BY = {
    "given": "the recipe given",
    "engine": "the engine's mixture",
    "kld": "least KLD",
    "perplexity": "least perplexity",
    "found": "the search",
}
_FINALIST = ("mix", "made by", "size", "tokens a cycle", "tokens/s", "over the given")
_SPAN = ("span", "type", "size", "of the mix", "next smaller", "saves", "KLD more", "earns")


def shown_search(record: SearchRecord) -> Shown:
    """``record`` as it is printed; last how far each is above the given in what was sought."""
    wide = finalists_table(record)
    sentence = record.sentence.removeprefix(f"{record.verdict}: ")
    parts = record.prompts
    judged = f"prompts: judged on {len(parts.verdict)} that the search did not see; it saw "
    judged += f"{len(parts.search)}"
    if parts.calibration:
        judged += f", and {len(parts.calibration)} others made the importance matrix"
    answers = [
        f"{record.verdict}: {sentence}",
        judged,
        f"cost: {plural(len(record.evaluations), 'evaluation')} in {duration(record.seconds)}",
        *allocation_answer(record),
    ]
    if record.enough_bytes is not None:
        answers.append(
            f"size: beyond {short_size(record.enough_bytes)} extra bits buy less than "
            f"{record.aim.margin:.1%} of acceptance length"
        )
    if record.found_recipe is not None and record.verdict != "given":
        answers.append("why: `cook search --explain` shows which spans earn their bits")
    return Shown(
        table=wide.only(_FINALIST),
        wide=wide,
        answers=tuple(answers),
        warnings=record.warnings,
        notes=tuple(model_notes(record)),
    )


def explained(record: SearchRecord) -> Shown:
    """Every span of the mix that is returned, those whose bits earn most first."""
    wide = spans_table(record, earnings(record))
    earns = "earns: nats a byte saves here, over what the next bytes would save elsewhere"
    return Shown(wide.only(_SPAN), wide, answers=(earns,))


def finalists_table(record: SearchRecord) -> Table:
    """The finalists; speeds only where speed was sought."""
    timed = record.timing is not None
    titles = (*_FINALIST, "KLD", "PPL", "types")
    rows: list[Cells] = []
    for one in record.finalists:
        length, interval = number(one.replayed.acceptance_length), one.acceptance_length
        if length is not None and interval is not None:
            length += f" ({interval.low:.2f}-{interval.high:.2f})"
        speed = interval_text(one.speed_against_given, digits=1)
        types = sorted(one.types.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            (
                one.name,
                MADE_BY[one.family],
                short_size(one.size_bytes),
                length,
                number(one.decode_speed, ".1f"),
                speed if timed else interval_text(one.against_given),
                number(one.replayed.mean_kld, ".4f"),
                number(one.perplexity, ".3f"),
                ", ".join(f"{count} {name}" for name, count in types),
            )
        )
    table = figures(titles, rows, title=None, pick=record.best, words=("made by", "types"))
    return table if timed else table.only({*titles} - {"tokens/s"})


def spans_table(record: SearchRecord, found: Sequence[Earning]) -> Table:
    """What each span earns."""
    unit, word = binary_unit(record.reference_bytes)
    titles = (
        *(*_SPAN, "next larger", f"KLD a {word}"),
        *("tokens a cycle less", "layers", "bpw"),
    )
    rows: list[Cells] = []
    for one in found:
        span, chosen, per_byte = one.span, one.chosen, one.kld_per_byte
        rows.append(
            (
                span.name,
                chosen.type,
                short_size(chosen.size_bytes),
                f"{one.share:.1%}",
                one.smaller.type if one.smaller else None,
                short_size(one.saved_bytes),
                number(one.kld_more, ".2g"),
                f"{one.times_price:.2g}x" if one.times_price is not None else None,
                one.larger.type if one.larger else None,
                number(per_byte * unit if per_byte is not None else None, ".3g"),
                number(one.length_less),
                None if span.first_layer is None else f"{span.first_layer}-{span.last_layer}",
                number(8 * chosen.size_bytes / span.elements if span.elements else None),
            )
        )
    return figures(titles, rows, words=("type", "next smaller", "next larger"))


def interval_text(effect: Effect | None, digits: int = 2) -> str | None:
    """``+0.09 (+0.07 to +0.11)``; None where there is nothing."""
    if effect is None:
        return None
    text = f"{effect.value:+.{digits}f}"
    if effect.interval is not None:
        text += f" ({effect.interval.low:+.{digits}f} to {effect.interval.high:+.{digits}f})"
    return text


def allocation_answer(record: SearchRecord) -> Iterator[str]:
    """How far the mix may be from the least damage there is, where one was allocated."""
    if (found := record.allocation) is not None:
        yield (
            f"allocation: added KLD {found.damage:.4g} nats in {short_size(found.size_bytes)}, and "
            f"no mix of that size has less than {found.bound:.4g} by the measured costs "
            f"(gap {found.gap:.2%})"
        )


def model_notes(record: SearchRecord) -> Iterator[str]:
    """How well the models predict, on what they were not fitted on."""
    if (law := record.law) is not None:
        fitted = plural(law.fitted, "whole mix", "whole mixes")
        text = f"acceptance: alpha lost = {law.kappa:.3g} * KLD^{law.power:g}, fitted on {fitted}"
        if law.error is not None:
            text += f"; on {law.held_out} others the length was off by {law.error:.1%}, at most "
            text += f"{law.largest_error:.1%}"
        if law.additivity is not None:
            text += f"; whole mixes had {law.additivity:.2f} of the sum of their spans' KLD"
        yield text
    if (decode := record.decode) is not None:
        text = f"decode time: fitted on {plural(decode.fitted, 'timed mix', 'timed mixes')}"
        if decode.error is not None:
            text += f"; on {decode.held_out} others off by {decode.error:.1%}, at most "
            text += f"{decode.largest_error:.1%}"
        yield text
    if (timing := record.timing) is not None:
        text = f"finalists: timed in turn, {plural(timing.passes, 'pass', 'passes')}"
        if timing.noise is not None:
            text += f"; two measured cycles of one file differ by less than {timing.noise:.1%}"
        text += f"; the law was off by {timing.law_error:.1%} on them, at most "
        yield text + f"{timing.law_largest_error:.1%}"
    if (csv := record.csv) is not None:
        text = f"{csv.file}: {csv.used} costs of {csv.metric} taken, {csv.missing} not in it"
        if csv.rank_correlation is not None:
            text += f"; rank correlation {csv.rank_correlation:.2f} with the acceptance that "
            text += f"{csv.compared} of them lost here"
        yield text


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
