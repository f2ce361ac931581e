"""Which spans earn their bits: what each saves in its next smaller type, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cook.record.search_record import SearchedSpan, SearchRecord, TypeEffect

NEXT = 0.02
"""Of the mix's bytes: what the price of a byte is taken over; no one small span makes it."""


@dataclass(frozen=True)
class Earning:
    """One span of the mix that is returned, between its next smaller and its next larger type.

    Types of which no KLD is known are passed over. ``share``: of the mix's bytes. ``price``: nats a
    byte that as many more bytes as :data:`NEXT` would save where they save most.
    """

    span: SearchedSpan
    chosen: TypeEffect
    smaller: TypeEffect | None
    larger: TypeEffect | None
    share: float = 0.0
    price: float | None = None

    @property
    def saved_bytes(self) -> int | None:
        """By the next smaller type."""
        return None if self.smaller is None else self.chosen.size_bytes - self.smaller.size_bytes

    @property
    def kld_more(self) -> float | None:
        """Nats that the next smaller type would add."""
        return _difference(self.smaller, self.chosen, "kld")

    @property
    def length_less(self) -> float | None:
        """Tokens a cycle that it would cost, as the two types were replayed alone."""
        return _difference(self.chosen, self.smaller, "acceptance_length")

    @property
    def kld_per_byte(self) -> float | None:
        """What a byte of this span earns."""
        more, saved = self.kld_more, self.saved_bytes
        return more / saved if more is not None and saved else None

    @property
    def times_price(self) -> float | None:
        """What its bytes earn, over what as many would elsewhere at best; below 1 they would be
        better placed there."""
        if self.kld_per_byte is None or self.price is None:
            return None
        return self.kld_per_byte / self.price


def earnings(record: SearchRecord) -> tuple[Earning, ...]:
    """Spans of the mix that is returned, those whose bytes earn most first."""
    found = [e for span in record.spans if (e := _earning(span)) is not None]
    total = sum(e.chosen.size_bytes for e in found)
    price = _price(found, NEXT * total)
    priced = (replace(e, share=e.chosen.size_bytes / (total or 1), price=price) for e in found)
    return tuple(sorted(priced, key=lambda e: (e.kld_per_byte is None, -(e.kld_per_byte or 0.0))))


def _earning(span: SearchedSpan) -> Earning | None:
    known = sorted(
        (t for t in span.types if t.kld is not None or t.type == span.chosen),
        key=lambda t: t.size_bytes,
    )
    place = next((n for n, t in enumerate(known) if t.type == span.chosen), None)
    if place is None:
        return None  # split into others, or of a type that was not asked about
    below = [t for t in known[:place] if t.size_bytes < known[place].size_bytes]
    above = [t for t in known[place:] if t.size_bytes > known[place].size_bytes]
    smaller, larger = below[-1] if below else None, above[0] if above else None
    return Earning(span, known[place], smaller, larger)


def _difference(
    one: TypeEffect | None, other: TypeEffect | None, name: Literal["kld", "acceptance_length"]
) -> float | None:
    effects = [getattr(effect, name) if effect is not None else None for effect in (one, other)]
    mine, theirs = effects
    return mine.value - theirs.value if mine is not None and theirs is not None else None


def _price(found: Sequence[Earning], more_bytes: float) -> float | None:
    """Nats a byte that the best ``more_bytes`` would save; None where none saves any."""
    steps = []
    for earning in found:
        added = _difference(earning.larger, earning.chosen, "kld")
        if earning.larger is not None and added is not None and added < 0:
            steps.append((-added, earning.larger.size_bytes - earning.chosen.size_bytes))
    saved, taken = 0.0, 0
    for nats, size_bytes in sorted(steps, key=lambda step: -step[0] / step[1]):
        if taken < more_bytes:
            saved, taken = saved + nats, taken + size_bytes
    return saved / taken if taken else None
