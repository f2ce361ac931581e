"""Which spans earn their bits: what each saves in its next smaller type, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cook.record.search_record import SearchedSpan, SearchRecord, TypeEffect

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


Neighbours = tuple[SearchedSpan, TypeEffect, TypeEffect | None, TypeEffect | None]
"""A span, its type, the next smaller and the next larger."""


def earnings(record: SearchRecord) -> tuple[Earning, ...]:
    """Spans of the mix that is returned, those whose bytes earn most first."""
    found = [known for span in record.spans if (known := _neighbours(span)) is not None]
    total = sum(chosen.size_bytes for _, chosen, _, _ in found)
    price = _price(found, NEXT * total)
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


def _neighbours(span: SearchedSpan) -> Neighbours | None:
    """None for a span that was split into others, or is of a type that was not asked about."""
    chosen = next((t for t in span.types if t.type == span.chosen), None)
    if chosen is None:
        return None
    known = sorted((t for t in span.types if t.kld is not None), key=lambda t: t.size_bytes)
    below = [t for t in known if t.size_bytes < chosen.size_bytes]
    above = [t for t in known if t.size_bytes > chosen.size_bytes]
    return span, chosen, below[-1] if below else None, above[0] if above else None


def _difference(
    one: TypeEffect | None, other: TypeEffect | None, name: Literal["kld", "acceptance_length"]
) -> float | None:
    mine, theirs = (getattr(e, name) if e is not None else None for e in (one, other))
    return mine.value - theirs.value if mine is not None and theirs is not None else None


def _price(found: list[Neighbours], more_bytes: float) -> float | None:
    """Nats a byte that the best ``more_bytes`` would save; None where none saves any."""
    steps = []
    for _, chosen, _, larger in found:
        added = _difference(larger, chosen, "kld")
        if larger is not None and added is not None and added < 0:
            steps.append((-added, larger.size_bytes - chosen.size_bytes))
    saved, taken = 0.0, 0
    for nats, size_bytes in sorted(steps, key=lambda step: -step[0] / step[1]):
        if taken < more_bytes:
            saved, taken = saved + nats, taken + size_bytes
    return saved / taken if taken else None
