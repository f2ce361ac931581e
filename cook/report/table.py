"""The tables that end a build: one row a candidate, what was not measured left empty."""

from __future__ import annotations

from cook.record.record import Candidate, Draft, Record
from cook.report.numbers import counts, divergence, number, perplexity, ratio
from cook.units import size

Columns = tuple[tuple[str, str], ...]
Cells = tuple[str | None, ...]

_QUALITY = ("bpw", "PPL", "KLD")
_SCORED = ("accepted", "acceptance", "tokens/cycle", "decode t/s", "speedup", "end-to-end t/s")
_PREDICTED = ("predicted t/s", "best?")
REPLAYED = "~"
"""Before counts that are those of a replay: the candidate did not run live."""


def columns(record: Record, *, quality: bool = True) -> Columns:
    """(title, alignment) of :func:`row`."""
    titles = ("size", *(_QUALITY if quality else ()), *_SCORED, "speedup")
    titles += _PREDICTED if _any_predicted(record) else ()
    return (("candidate", "left"), *((title, "right") for title in titles))


def row(record: Record, candidate: Candidate, *, quality: bool = True) -> Cells:
    """What is known of a candidate; ``quality`` adds bits per weight, perplexity and KLD."""
    draft = record.draft(candidate.draft)
    live = candidate.live
    counted = live or (candidate.predicted.figures if candidate.predicted else None)
    mark = "" if live else REPLAYED
    rate = number(counted.acceptance_rate, ".1%") if counted else None
    length = number(counted.acceptance_length, ".2f") if counted else None
    cells = (
        candidate.name,
        size(draft.file_bytes) if draft else None,
        *(_quality(draft) if quality else ()),
        *(f"{mark}{cell}" if rate and cell else None for cell in (counts(counted), rate, length)),
        number(live.decode_speed, ".2f") if live else None,
        ratio(candidate.decode_speedup, None),
        number(live.end_to_end_speed, ".2f") if live else None,
        ratio(candidate.speedup, candidate.speedup_interval),
    )
    return cells + (_predicted(candidate) if _any_predicted(record) else ())


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


def _predicted(candidate: Candidate) -> Cells:
    found = candidate.predicted
    if found is None:
        return None, None
    return number(found.figures.end_to_end_speed, ".2f"), number(found.probability_best, ".0%")
