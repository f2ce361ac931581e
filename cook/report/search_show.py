"""What a search prints at its end: the finalists, the verdict, and what a reader asks next; and
which spans earn their bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cook.report.earnings import Earning, earning_text, earnings
from cook.report.show import PrintedTable, Shown
from cook.units import duration, plural, short_size

if TYPE_CHECKING:
    from cook.record.search_record import Effect, Finalist, SearchRecord

MADE_BY = {
    "given": "the recipe given",
    "engine": "the engine's mixture",
    "kld": "least KLD",
    "perplexity": "least perplexity",
    "found": "the search",
}


def shown_search(record: SearchRecord) -> Shown:
    """``record`` as it is printed; last how far each is above the given in what was sought."""
    timed = record.timing is not None
    columns = (
        ("mix", "left"),
        ("made by", "left"),
        ("size", "right"),
        ("tokens a cycle", "right"),
        *((("tokens/s", "right"),) if timed else ()),
        ("over the given", "right"),
    )
    wide = (("KLD", "right"), ("PPL", "right"), ("types", "left"))
    sentence = record.sentence.removeprefix(f"{record.verdict}: ")
    names = [f.name for f in record.finalists]
    best = names.index(record.best) if record.best in names else None
    short = tuple(_row(f, timed=timed) for f in record.finalists)
    more = tuple(_more(f) for f in record.finalists)
    whole = tuple((*row, *rest) for row, rest in zip(short, more, strict=True))
    return Shown(
        table=PrintedTable(columns, short, best),
        wide=PrintedTable((*columns, *wide), whole, best),
        answers=(f"{record.verdict}: {sentence}", *_answers(record)),
        warnings=record.warnings,
        notes=tuple(_notes(record)),
    )


def explained(record: SearchRecord) -> Shown:
    """Every span of the mix that is returned, those whose bits earn most first."""
    unit, word = _unit(record)
    found = earnings(record)
    columns = (
        ("span", "left"),
        ("type", "left"),
        ("size", "right"),
        ("of the mix", "right"),
        ("next smaller", "left"),
        ("saves", "right"),
        ("KLD more", "right"),
        ("earns", "right"),
    )
    wide = (
        ("next larger", "left"),
        (f"KLD a {word}", "right"),
        ("tokens a cycle less", "right"),
        ("layers", "right"),
        ("bpw", "right"),
    )
    rows = tuple(_span_row(e) for e in found)
    more = tuple(_span_more(e, unit) for e in found)
    both = tuple((*row, *rest) for row, rest in zip(rows, more, strict=True))
    return Shown(
        table=PrintedTable(columns, rows, None),
        wide=PrintedTable((*columns, *wide), both, None),
        answers=tuple(earning_text(e) for e in found),
        warnings=(),
        notes=(
            "earns: nats that a byte saves here, over what the next bytes would save elsewhere",
        ),
    )


def interval_text(value: float | None, effect: Effect | None, digits: int = 2) -> str | None:
    """``+0.09 (+0.07 to +0.11)``; None where there is nothing."""
    if effect is None:
        return None if value is None else f"{value:+.{digits}f}"
    text = f"{effect.value:+.{digits}f}"
    if effect.interval is not None:
        text += f" ({effect.interval.low:+.{digits}f} to {effect.interval.high:+.{digits}f})"
    return text


def _row(finalist: Finalist, *, timed: bool) -> tuple[str | None, ...]:
    length, interval = finalist.replayed.acceptance_length, finalist.acceptance_length
    text = None if length is None else f"{length:.2f}"
    if text is not None and interval is not None:
        text += f" ({interval.low:.2f}-{interval.high:.2f})"
    one = (finalist.name, MADE_BY[finalist.family], short_size(finalist.size_bytes), text)
    if not timed:
        return (*one, interval_text(None, finalist.against_given))
    speed = finalist.decode_speed
    printed = None if speed is None else f"{speed:.1f}"
    return (*one, printed, interval_text(None, finalist.speed_against_given, digits=1))


def _more(finalist: Finalist) -> tuple[str | None, ...]:
    kld, perplexity = finalist.replayed.mean_kld, finalist.perplexity
    types = sorted(finalist.types.items(), key=lambda item: (-item[1], item[0]))
    return (
        None if kld is None else f"{kld:.4f}",
        None if perplexity is None else f"{perplexity:.3f}",
        ", ".join(f"{count} {name}" for name, count in types),
    )


def _answers(record: SearchRecord) -> Iterator[str]:
    """What a reader asks, a line each."""
    parts = record.prompts
    text = f"prompts: judged on {len(parts.verdict)} that the search did not see; it saw "
    text += f"{len(parts.search)}"
    if parts.calibration:
        text += f", and {len(parts.calibration)} others made the importance matrix"
    yield text
    took = plural(len(record.evaluations), "evaluation")
    yield f"cost: {took} in {duration(record.seconds)}"
    if (found := record.allocation) is not None:
        yield (
            f"allocation: added KLD {found.damage:.4g} nats in {short_size(found.size_bytes)}, and "
            f"no mix of that size has less than {found.bound:.4g} by the measured costs "
            f"(gap {found.gap:.2%})"
        )
    if record.enough_bytes is not None:
        yield (
            f"size: beyond {short_size(record.enough_bytes)} extra bits buy less than "
            f"{record.aim.margin:.1%} of acceptance length"
        )
    if record.found_recipe is not None and record.verdict != "given":
        yield "why: `cook search --explain` tells which spans earn their bits"


def _notes(record: SearchRecord) -> Iterator[str]:
    """How well the models predict, on what they were not fitted on."""
    if (law := record.law) is not None:
        text = (
            f"acceptance: alpha lost = {law.kappa:.3g} * KLD^{law.power:g}, fitted on "
            f"{plural(law.fitted, 'whole mix', 'whole mixes')}"
        )
        if law.error is not None:
            text += (
                f"; on {law.held_out} others the length was off by {law.error:.1%}, at most "
                f"{law.largest_error:.1%}"
            )
        if law.additivity is not None:
            text += f"; whole mixes had {law.additivity:.2f} of the sum of their spans' KLD"
        yield text
    if (decode := record.decode) is not None:
        text = f"decode time: fitted on {plural(decode.fitted, 'timed mix', 'timed mixes')}"
        if decode.error is not None:
            text += (
                f"; on {decode.held_out} others off by {decode.error:.1%}, at most "
                f"{decode.largest_error:.1%}"
            )
        yield text
    if (timing := record.timing) is not None:
        text = f"finalists: timed in turn, {plural(timing.passes, 'pass', 'passes')}"
        if timing.noise is not None:
            text += f"; two measured cycles of one file differ by less than {timing.noise:.1%}"
        yield (
            f"{text}; the law was off by {timing.law_error:.1%} on them, at most "
            f"{timing.law_largest_error:.1%}"
        )
    if (csv := record.csv) is not None:
        text = f"{csv.file}: {csv.used} costs of {csv.metric} taken, {csv.missing} not in it"
        if csv.rank_correlation is not None:
            text += (
                f"; rank correlation {csv.rank_correlation:.2f} with the acceptance that "
                f"{csv.compared} of them lost here"
            )
        yield text


def _unit(record: SearchRecord) -> tuple[int, str]:
    return (1 << 30, "GiB") if record.reference_bytes >= 1 << 29 else (1 << 20, "MiB")


def _span_row(earning: Earning) -> tuple[str | None, ...]:
    more, times = earning.kld_more, earning.times_price
    return (
        earning.span.name,
        earning.chosen.type,
        short_size(earning.chosen.size_bytes),
        f"{earning.share:.1%}",
        earning.smaller.type if earning.smaller else None,
        short_size(earning.saved_bytes),
        None if more is None else f"{more:.2g}",
        None if times is None else f"{times:.2g}x",
    )


def _span_more(earning: Earning, unit: int) -> tuple[str | None, ...]:
    span, chosen, smaller = earning.span, earning.chosen, earning.smaller
    lengths = [t.acceptance_length for t in (smaller, chosen) if t is not None]
    both = [length.value for length in lengths if length is not None]
    layers = None if span.first_layer is None else f"{span.first_layer}-{span.last_layer}"
    per_unit = earning.kld_per_byte
    return (
        earning.larger.type if earning.larger else None,
        None if per_unit is None else f"{per_unit * unit:.3g}",
        f"{both[1] - both[0]:.2f}" if len(both) == 2 else None,
        layers,
        f"{8 * chosen.size_bytes / span.elements:.2f}" if span.elements else None,
    )
