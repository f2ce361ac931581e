"""The tables that end a build: one row a candidate, what was not measured left empty."""

from __future__ import annotations

from cook.record.objective import Objective
from cook.record.record import Candidate, Draft, Record
from cook.report.numbers import counts, divergence, number, perplexity, ratio
from cook.units import size

Columns = tuple[tuple[str, str], ...]
Cells = tuple[str | None, ...]

_QUALITY = ("bpw", "PPL", "KLD")
_SCORED = (
    *("accepted/drafted", "acceptance", "tokens a cycle", "decode t/s", "decode speedup"),
    "end-to-end t/s",
)
DECODE, END_TO_END = Objective.DECODE_SPEED, Objective.END_TO_END_SPEED
REPLAYED = "~"
"""Before counts that are those of a replay: the candidate did not run live."""
SHOWN = 10
"""Rows that the short table has at most, for a terminal of the usual height."""


def columns(record: Record, *, quality: bool = True) -> Columns:
    """(title, alignment) of :func:`row`."""
    titles = ("size", *(_QUALITY if quality else ()), *_SCORED, _speedup_title(record))
    titles += ("predicted end-to-end t/s",) if _any_predicted(record) else ()
    titles += (_chance_title(record),) if _chances(record) else ()
    return (("candidate", "left"), *((title, "right") for title in titles))


def row(record: Record, candidate: Candidate, *, quality: bool = True) -> Cells:
    """What is known of a candidate; ``quality`` adds bits per weight, perplexity and KLD."""
    draft = record.draft(candidate.draft)
    live = candidate.live
    counted = live or (candidate.predicted.figures if candidate.predicted else None)
    mark = "" if live else REPLAYED
    rate = number(counted.acceptance_rate, ".1%") if counted else None
    length = number(counted.acceptance_length, ".2f") if counted else None
    cells: Cells = (
        candidate.name,
        size(draft.file_bytes) if draft else None,
        *(_quality(draft) if quality else ()),
        *(f"{mark}{cell}" if rate and cell else None for cell in (counts(counted), rate, length)),
        number(live.decode_speed, ".2f") if live else None,
        ratio(candidate.decode_speedup, None),
        number(live.end_to_end_speed, ".2f") if live else None,
        ratio(candidate.speedup, candidate.speedup_interval),
    )
    if _any_predicted(record):
        found = candidate.predicted
        cells += (number(found.figures.end_to_end_speed, ".2f") if found else None,)
    chances = _chances(record)
    return (*cells, number(chances.get(candidate.name), ".0%")) if chances else cells


def short_columns(record: Record) -> Columns:
    """(title, alignment) of :func:`short_row`: what a choice is made by."""
    own = _SHORT.get(record.pick.maximize, ("end-to-end t/s",))
    titles = ("size", "acceptance", *own, _speedup_title(record))
    return (("candidate", "left"), *((t, "right") for t in titles), ("figures", "left"))


_SHORT = {
    "decode_speed": ("decode t/s", "decode speedup"),
    "acceptance_length": ("tokens a cycle", "end-to-end t/s"),
}


def short_row(record: Record, candidate: Candidate) -> Cells:
    """The same with live figures, and with predicted ones where it did not run live; the last
    cell says which."""
    draft = record.draft(candidate.draft)
    live, guess = candidate.live, candidate.predicted
    found = live or (guess.figures if guess else None)
    if found is None:
        return (candidate.name, *[None] * (len(short_columns(record)) - 1))
    own: Cells = (number(found.end_to_end_speed, ".2f"),)
    if record.pick.maximize == "decode_speed":
        decode = candidate.decode_speedup if live else _guessed(record, candidate, DECODE)
        own = number(found.decode_speed, ".2f"), ratio(decode, None)
    elif record.pick.maximize == "acceptance_length":
        own = number(found.acceptance_length, ".2f"), *own
    speedup = candidate.speedup if live else _guessed(record, candidate, END_TO_END)
    return (
        candidate.name,
        size(draft.file_bytes) if draft else None,
        number(found.acceptance_rate, ".1%"),
        *own,
        ratio(speedup, candidate.speedup_interval if live else None),
        "live" if live else "predicted",
    )


def _guessed(record: Record, candidate: Candidate, speed: Objective) -> float | None:
    """The predicted speedup over no draft of the same engine."""
    bare = next(
        (c for c in record.candidates if c.draft is None and c.engine == candidate.engine), None
    )
    if bare is None or bare.predicted is None or candidate.predicted is None:
        return None
    mine, other = (speed.of(c.predicted.figures) for c in (candidate, bare) if c.predicted)
    return mine / other if mine is not None and other else None


def _speedup_title(record: Record) -> str:
    return f"end-to-end speedup ({record.pick.confidence:.0%})"


def _chances(record: Record) -> dict[str, float]:
    """Of each candidate, to be within the margin of the best; the pick's is never the least."""
    return record.pick.certainty.chances if record.pick.certainty else {}


def _chance_title(record: Record) -> str:
    assert record.pick.certainty is not None, "it has the chances"
    return f"chance within {100 * record.pick.certainty.margin:g}%"


def in_order(record: Record) -> list[Candidate]:
    """The candidates, fastest first, then by prediction."""
    order = {name: index for index, name in enumerate(record.pick.ranking)}

    def place(candidate: Candidate) -> tuple[int, float]:
        guess = candidate.predicted.figures.end_to_end_speed if candidate.predicted else None
        return order.get(candidate.name, len(order)), -(guess or 0.0)

    return sorted(record.candidates, key=place)


def to_look_at(record: Record) -> list[Candidate]:
    """Of :func:`in_order`, no draft, what ran live and the first of each draft."""
    kept: set[tuple[str, str | None]] = set()
    short = []
    for candidate in in_order(record):
        draft = (candidate.engine, candidate.draft)
        if candidate.live is not None or candidate.draft is None or draft not in kept:
            short.append(candidate)
        kept.add(draft)
    return short


def in_short(record: Record) -> list[Candidate]:
    """Of :func:`to_look_at`, as many as a screen has room for, the pick and no draft always."""
    every = to_look_at(record)
    must = [c for c in every if c.draft is None or c.name == record.pick.candidate]
    rest = [c for c in every if c not in must][: max(0, SHOWN - len(must))]
    return [c for c in every if c in must or c in rest]


def draft_columns() -> Columns:
    """(title, alignment) of :func:`draft_row`."""
    return (("quant", "left"), *((t, "right") for t in ("size", *_QUALITY)))


def draft_row(draft: Draft) -> Cells:
    """A quant of a recipe without a score."""
    bpw, found, kld = _quality(draft)
    return draft.quant, size(draft.file_bytes), bpw, found or draft.quality_reason, kld


def _any_predicted(record: Record) -> bool:
    return any(c.predicted is not None for c in record.candidates)


def _quality(draft: Draft | None) -> Cells:
    if draft is None:
        return None, None, None
    return number(draft.bpw, ".2f"), perplexity(draft.quality), divergence(draft.quality)
