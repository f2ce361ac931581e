"""What a search prints at its end: the finalists, the verdict, and what a reader asks next; and
which spans earn their bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cook.report.document import Cells, Table, figures
from cook.report.earnings import Earning, earnings
from cook.report.show import Shown
from cook.report.texts import binary_unit
from cook.units import duration, number, plural, short_size

if TYPE_CHECKING:
    from cook.record.search_record import Effect, Finalist, SearchRecord

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
    return Shown(
        table=wide.only(_FINALIST),
        wide=wide,
        answers=(f"{record.verdict}: {sentence}", *_answers(record)),
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
    rows = (_finalist(finalist, timed=timed) for finalist in record.finalists)
    table = figures(titles, rows, title=None, pick=record.best, words=("made by", "types"))
    return table if timed else table.only({*titles} - {"tokens/s"})


def spans_table(record: SearchRecord, found: Sequence[Earning]) -> Table:
    """What each span earns."""
    unit, word = binary_unit(record.reference_bytes)
    titles = (
        *(*_SPAN, "next larger", f"KLD a {word}"),
        *("tokens a cycle less", "layers", "bpw"),
    )
    rows = (_span(earning, unit) for earning in found)
    return figures(titles, rows, words=("type", "next smaller", "next larger"))


def interval_text(effect: Effect | None, digits: int = 2) -> str | None:
    """``+0.09 (+0.07 to +0.11)``; None where there is nothing."""
    if effect is None:
        return None
    text = f"{effect.value:+.{digits}f}"
    if effect.interval is not None:
        text += f" ({effect.interval.low:+.{digits}f} to {effect.interval.high:+.{digits}f})"
    return text


def _finalist(finalist: Finalist, *, timed: bool) -> Cells:
    length, interval = number(finalist.replayed.acceptance_length), finalist.acceptance_length
    if length is not None and interval is not None:
        length += f" ({interval.low:.2f}-{interval.high:.2f})"
    speed = interval_text(finalist.speed_against_given, digits=1)
    types = sorted(finalist.types.items(), key=lambda item: (-item[1], item[0]))
    return (
        finalist.name,
        MADE_BY[finalist.family],
        short_size(finalist.size_bytes),
        length,
        number(finalist.decode_speed, ".1f"),
        speed if timed else interval_text(finalist.against_given),
        number(finalist.replayed.mean_kld, ".4f"),
        number(finalist.perplexity, ".3f"),
        ", ".join(f"{count} {name}" for name, count in types),
    )


def _span(earning: Earning, unit: int) -> Cells:
    span, chosen, per_byte = earning.span, earning.chosen, earning.kld_per_byte
    return (
        span.name,
        chosen.type,
        short_size(chosen.size_bytes),
        f"{earning.share:.1%}",
        earning.smaller.type if earning.smaller else None,
        short_size(earning.saved_bytes),
        number(earning.kld_more, ".2g"),
        f"{earning.times_price:.2g}x" if earning.times_price is not None else None,
        earning.larger.type if earning.larger else None,
        number(per_byte * unit if per_byte is not None else None, ".3g"),
        number(earning.length_less),
        None if span.first_layer is None else f"{span.first_layer}-{span.last_layer}",
        number(8 * chosen.size_bytes / span.elements if span.elements else None),
    )


def _answers(record: SearchRecord) -> Iterator[str]:
    """What a reader asks, a line each."""
    parts = record.prompts
    text = f"prompts: judged on {len(parts.verdict)} that the search did not see; it saw "
    text += f"{len(parts.search)}"
    if parts.calibration:
        text += f", and {len(parts.calibration)} others made the importance matrix"
    yield text
    yield f"cost: {plural(len(record.evaluations), 'evaluation')} in {duration(record.seconds)}"
    yield from allocation_answer(record)
    if record.enough_bytes is not None:
        yield (
            f"size: beyond {short_size(record.enough_bytes)} extra bits buy less than "
            f"{record.aim.margin:.1%} of acceptance length"
        )
    if record.found_recipe is not None and record.verdict != "given":
        yield "why: `cook search --explain` shows which spans earn their bits"


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
