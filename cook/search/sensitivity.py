"""What each type costs each span: measured where it matters, taken from its kin elsewhere.

One span at a time is changed from the mix of the largest types and replayed. How far that takes the
model from its source (KLD, nats a token) adds up over spans; so does, less well, what it takes off
the likelihood of the target's text. Costs that were not measured follow the curve of the span, of
the span that it was split from, or of quantization at large: an error of rounding falls by half
with every bit, and what it does to probabilities by a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from cook.formats.quant_types import by_name
from cook.formats.sensitivity_csv import Sensitivities
from cook.record.search_record import CsvAgreement
from cook.scoring.allocation import Allocation, SpanCosts, TypeCost, allocate
from cook.scoring.fits import rank_correlation
from cook.search.evaluate import Ledger, Replies
from cook.search.space import Mix, Space, Span

Damage = Callable[[Replies], float]
"""Of a mix on the prompts of the search, less the reference's: a damage."""
LEAST = 1e-7
"""Nats a token: below it a damage is none."""
A_BIT = math.log(4.0)
PAYS = 0.02
"""A split pays where it takes so large a share off the damage of the best mix."""


def kld(replies: Replies) -> float:
    """How far from its source."""
    return replies.mean_kld


def nll(replies: Replies) -> float:
    """How unlikely the target's text: what an allocation by perplexity minimizes."""
    return replies.mean_nll


@dataclass(eq=False)
class Sensitivity:
    """The costs of the spans of a space, measured through ``ledger`` as they are needed.

    ``spans``: those of now; ``table``: published costs, and ``scale`` nats here for one of these.
    """

    space: Space
    ledger: Ledger
    reference: Mix
    spans: tuple[Span, ...]
    table: Sensitivities | None = None
    scale: float = 1.0

    @classmethod
    def of(
        cls, space: Space, ledger: Ledger, published: Sensitivities | None = None
    ) -> Sensitivity:
        """Of the coarsest spans, nothing measured but the reference."""
        ledger.replay(space.largest, "reference", "what others are changed from")
        return cls(space, ledger, space.largest, space.spans(), published)

    def lineage(self) -> tuple[Span, ...]:
        """The spans of now, each after those that it was split from."""
        found: dict[str, Span] = {}
        for span in self.spans:
            line = [span]
            while (parent := line[-1].parent) is not None:
                line.append(parent)
            found |= {one.name: one for one in reversed(line)}
        return tuple(found.values())

    @property
    def base(self) -> Replies:
        """What the reference does."""
        return self.ledger.entries[self.reference].replies

    def measured(self, span: Span, type_name: str) -> Replies | None:
        """What the reference does with ``span`` in another type; None where that was not
        replayed."""
        return self.ledger.known(self.space.changed(self.reference, span, type_name))

    def published(self, span: Span, type_name: str) -> float | None:
        """The published cost of ``span`` in a type; None where a tensor has none."""
        if self.table is None:
            return None
        tensors = [t.name for place in span.ties for t in self.space.ties[place].tensors]
        nats = [self.table.nats(name, type_name) for name in tensors]
        return None if None in nats else sum(n for n in nats if n is not None)

    def compare(self, max_bytes: int, until: float) -> None:
        """Replay each span in the type that what was published leads to, and take the published
        costs for as many nats as these are here: their model and text were others."""
        mix, _ = self.allocated(max_bytes)
        chosen = [(s, mix[s.ties[0]]) for s in self.spans]
        wanted = [one for one in chosen if one[1] != self._reference_type(one[0])]
        self.measure(wanted[: max(0, int(self.ledger.left - until))])
        added = [(kld(replies) - kld(self.base), nats) for replies, nats in self._both()]
        ratios = [more / nats for more, nats in added if nats > 0 and more > LEAST]
        self.scale = median(ratios) if ratios else 1.0

    def _both(self) -> list[tuple[Replies, float]]:
        """What was replayed, with what was published of it."""
        return [
            (replies, nats)
            for span in self.lineage()
            for type_name in span.types[:-1]
            if (replies := self.measured(span, type_name)) is not None
            and (nats := self.published(span, type_name)) is not None
        ]

    def agreement(self) -> CsvAgreement:
        """How far what was published agrees with the acceptance lost here."""
        assert self.table is not None, "asked of what was published"
        both = self._both()
        lost = [self.base.acceptance_length - replies.acceptance_length for replies, _ in both]
        missing = [s for s in self.spans if self.published(s, s.types[0]) is None]
        return CsvAgreement(
            file=self.table.path.name,
            metric=self.table.metric,
            used=len(self.spans) - len(missing),
            missing=len(missing),
            compared=len(both),
            rank_correlation=rank_correlation([nats for _, nats in both], lost),
        )

    def measure(self, wanted: Sequence[tuple[Span, str]]) -> None:
        """Replay the reference with one span at a time in another type."""
        for span, type_name in wanted:
            mix = self.space.changed(self.reference, span, type_name)
            self.ledger.replay(mix, "sensitivity", f"{span.name} in {type_name}")

    def damage(self, span: Span, type_name: str, metric: Damage) -> float:
        """What ``type_name`` adds to ``metric`` of the reference, measured or not; at least 0."""
        if type_name == self._reference_type(span):
            return 0.0
        base = metric(self.base)
        published = self.published(span, type_name)
        if published is not None and self.measured(span, type_name) is None:
            return self.scale * published
        points: list[tuple[float, float]] = []
        for other in span.types[:-1]:
            if (replies := self.measured(span, other)) is not None:
                value = max(metric(replies) - base, LEAST)
                if other == type_name:
                    return value
                points.append(
                    (by_name(other).bpw, math.log(value / self._shape(span, other, metric)))
                )
        shape = self._shape(span, type_name, metric)
        if not points:
            return shape
        points.sort()
        bits = by_name(type_name).bpw
        below = [p for p in points if p[0] <= bits] or points[:1]
        above = [p for p in points if p[0] >= bits] or points[-1:]
        (x0, y0), (x1, y1) = below[-1], above[0]
        share = (bits - x0) / (x1 - x0) if x1 > x0 else 0.0
        return shape * math.exp(y0 + share * (y1 - y0))

    def _shape(self, span: Span, type_name: str, metric: Damage) -> float:
        """The curve that the span's own points bend: its parent's, in proportion to its weights,
        or that of quantization at large."""
        if span.parent is None:
            return math.exp(-A_BIT * by_name(type_name).bpw)
        share = self.space.elements(span) / self.space.elements(span.parent)
        return max(share * self.damage(span.parent, type_name, metric), LEAST)

    def _reference_type(self, span: Span) -> str:
        return self.reference[span.ties[0]]

    def costs(
        self, metric: Damage = kld, seconds: Callable[[Span, str], float] = lambda *_: 0.0
    ) -> tuple[SpanCosts, ...]:
        """Every span with its types, smaller ones never less damaging than larger ones."""
        found = []
        for span in self.spans:
            costs: list[TypeCost] = []
            for type_name in reversed(span.types):
                size = self.space.bytes_in(span, type_name)
                larger = (one.damage for one in costs if one.size_bytes > size)
                damage = max([self.damage(span, type_name, metric), *larger])
                costs.append(TypeCost(type_name, size, damage, seconds(span, type_name)))
            found.append(SpanCosts(span.name, tuple(reversed(costs))))
        return tuple(found)

    def mix_of(self, allocation: Allocation) -> Mix:
        """The mix in which each span has the type that it was allocated."""
        mix = list(self.reference)
        for span, chosen in zip(self.spans, allocation.chosen, strict=True):
            for place in span.ties:
                mix[place] = span.types[chosen]
        return tuple(mix)

    def allocated(self, max_bytes: int, metric: Damage = kld) -> tuple[Mix, Allocation]:
        """The mix of least damage in a file of at most ``max_bytes``."""
        found = allocate(self.costs(metric), max_bytes - self.space.fixed_bytes)
        return self.mix_of(found), found

    def settle(self, max_bytes: int, until: float) -> None:
        """Measure what the best mix of this size would have, until it has nothing else or only
        ``until`` evaluations are left."""
        while self.ledger.left > until:
            mix, _ = self.allocated(max_bytes)
            wanted = [
                (span, mix[span.ties[0]])
                for span in self.spans
                if mix[span.ties[0]] != self._reference_type(span)
                and self.measured(span, mix[span.ties[0]]) is None
                and self.published(span, mix[span.ties[0]]) is None
            ]
            if not wanted:
                return
            self.measure(wanted[: max(1, int(self.ledger.left - until))])

    def split(self, max_bytes: int, until: float) -> None:
        """Split spans, the most damaging first, as long as that pays."""
        kept_whole: set[str] = set()
        while self.ledger.left > until:
            mix, before = self.allocated(max_bytes)
            divisible = [s for s in self.spans if len(s.ties) > 1 and s.name not in kept_whole]
            if not divisible:
                return
            span = max(divisible, key=lambda s: self.damage(s, mix[s.ties[0]], kld))
            type_name = mix[span.ties[0]]
            if type_name == self._reference_type(span):
                type_name = span.types[-2] if len(span.types) > 1 else type_name
            parts = self.space.split(span)
            unknown = [p for p in parts if self.published(p, type_name) is None]
            if len(unknown) > self.ledger.left - until:
                return
            self.measure([(part, type_name) for part in unknown if type_name in part.types])
            coarse, place = self.spans, self.spans.index(span)
            self.spans = (*coarse[:place], *parts, *coarse[place + 1 :])
            _, after = self.allocated(max_bytes)
            if after.damage >= (1 - PAYS) * before.damage:
                self.spans = coarse
                kept_whole.add(span.name)
            self.settle(max_bytes, until)
