"""Which type for which span, at a size: a multiple-choice knapsack with a certified bound.

Every span gets one of its types, the sum of bytes is bounded, the sum of damages is to be least.
What adds over spans is KLD, not acceptance (docs/internals/mixes.md), so damage is KLD in
nats wherever it was measured.

The relaxation that may split a span between two types is solved by sorting: what each span's
convex hull saves a byte, largest first (Sinha and Zoltners 1979). Its value bounds every mix from
below, and the mix before its one split span is feasible. Between the two a branch and bound over
whole spans decides, in the order in which they are in doubt (Pisinger 1995). Spans are taken one
by one: what is kept of the mixes of those taken is the smallest for its damage, and what cannot
end below the best mix so far is dropped. Where more states are in doubt than :data:`MOST_STATES`
the least promising are dropped, too, and the bound is what the best of them might have become.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats, Ints
from cook.units import size

MOST_STATES = 4000
"""Partial mixes that are followed at once."""
FILLED = 48
"""The front has a point at least every so many parts of its range of sizes."""
PRICES = 24
"""Of a second, that :func:`fastest` tries in each of its two sweeps."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class TypeCost:
    """What one type costs a span: bytes; damage; seconds a decoded token takes to read it."""

    type: str
    size_bytes: int
    damage: float
    seconds: float = 0.0


@dataclass(frozen=True)
class SpanCosts:
    """One span and the types that it may have: floors and ties are applied before this."""

    name: str
    costs: tuple[TypeCost, ...]

    def __post_init__(self) -> None:
        if not self.costs:
            raise InputError(f"{self.name}: no type is left that it may have")
        for cost in self.costs:
            if not np.isfinite([cost.damage, cost.seconds]).all() or cost.size_bytes < 0:
                raise InputError(f"{self.name}: {cost.type}: a cost is not a number")


@dataclass(frozen=True)
class Allocation:
    """A mix: the index of each span's type, and what they come to.

    No mix of the size that was asked for has less damage than ``bound``.
    """

    chosen: tuple[int, ...]
    size_bytes: int
    damage: float
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """How far ``damage`` may be from the least there is, as a share of the larger of the two
        in size; 0 where it is the least."""
        if self.damage - self.bound <= _ROUNDING * abs(self.damage):
            return 0.0
        return (self.damage - self.bound) / max(abs(self.damage), abs(self.bound))


def allocate(spans: Sequence[SpanCosts], max_bytes: int) -> Allocation:
    """The mix of least damage in at most ``max_bytes``.

    InputError where even the smallest mix is larger.
    """
    return _Knapsack(spans).solve(max_bytes)


def front(spans: Sequence[SpanCosts]) -> tuple[Allocation, ...]:
    """Mixes from the smallest to the one of least damage, each of less damage than all smaller.

    Those on the convex front are the best of their sizes by themselves; where it has a wide step,
    as where one span has most of the bytes, mixes of sizes between are allocated.
    """
    knapsack = _Knapsack(spans)
    found = knapsack.convex()
    least, most = found[0].size_bytes, found[-1].size_bytes
    for small, large in pairwise(tuple(found)):
        parts = int(FILLED * (large.size_bytes - small.size_bytes) / max(most - least, 1))
        for part in range(1, parts):
            between = small.size_bytes + (large.size_bytes - small.size_bytes) * part // parts
            found.append(knapsack.solve(between))
    kept: list[Allocation] = []
    for point in sorted(found, key=lambda a: (a.size_bytes, a.damage)):
        if not kept or point.damage < kept[-1].damage:
            kept.append(point)
    return tuple(kept)


def fastest(
    spans: Sequence[SpanCosts], max_bytes: int, speed: Callable[[float, float], float]
) -> Allocation:
    """The mix that ``speed`` of (damage, seconds) is largest for, in at most ``max_bytes``.

    Fewer bits cost acceptance and gain time. A mix of the convex front of these two has least
    damage + price * seconds for some price of a second; so prices are swept, first over all at
    which a span's type may change, then around the best; and the front of sizes is looked at, which
    has mixes between. ``bound`` is for mixes that take no longer.
    """
    knapsack = _Knapsack(spans)
    found = [knapsack.solve(max_bytes)]
    found += [point for point in front(spans) if point.size_bytes <= max_bytes]
    sweep: list[tuple[float, Allocation]] = []
    # Damage a second at which some span's choice between two of its types turns.
    if prices := [
        (less.damage - more.damage) / (more.seconds - less.seconds)
        for span in spans
        for less in span.costs
        for more in span.costs
        if more.seconds > less.seconds and less.damage > more.damage
    ]:
        for _ in range(2):
            ends = _around(sweep, speed) if sweep else (min(prices), max(prices))
            sweep += [(p, _priced(spans, max_bytes, float(p))) for p in np.geomspace(*ends, PRICES)]
            sweep.sort(key=lambda tried: tried[0])
    found += [allocation for _, allocation in sweep]
    return max(found, key=lambda a: speed(a.damage, a.seconds))


def _around(
    sweep: Sequence[tuple[float, Allocation]], speed: Callable[[float, float], float]
) -> tuple[float, float]:
    """The prices next to the one whose mix is the fastest."""
    speeds = [speed(a.damage, a.seconds) for _, a in sweep]
    best = speeds.index(max(speeds))
    return sweep[max(best - 1, 0)][0], sweep[min(best + 1, len(sweep) - 1)][0]


def _priced(spans: Sequence[SpanCosts], max_bytes: int, price: float) -> Allocation:
    """The mix of least damage + ``price`` * seconds."""
    dearer = [
        replace(s, costs=tuple(replace(c, damage=c.damage + price * c.seconds) for c in s.costs))
        for s in spans
    ]
    found = allocate(dearer, max_bytes)
    cost = price * found.seconds
    damage = sum(s.costs[c].damage for s, c in zip(spans, found.chosen, strict=True))
    return replace(found, damage=damage, bound=min(found.bound - cost, damage))


class _Knapsack:
    """The spans as arrays: of each, the types worth having, by rising bytes and falling damage."""

    def __init__(self, spans: Sequence[SpanCosts]) -> None:
        self.spans = spans
        self.types = [_worth_having(span) for span in spans]
        self.size = [np.array([s.costs[t].size_bytes for t in ts], np.int64) for s, ts in self._of]
        self.damage = [np.array([s.costs[t].damage for t in ts]) for s, ts in self._of]

    @property
    def _of(self) -> list[tuple[SpanCosts, list[int]]]:
        return list(zip(self.spans, self.types, strict=True))

    @cached_property
    def steps(self) -> _Steps:
        return _Steps.of(self.size, self.damage)

    def convex(self) -> list[Allocation]:
        """Every mix of the convex front, by rising size."""
        chosen = [0] * len(self.spans)
        found = [self.allocation(chosen)]
        for span, place in zip(self.steps.span, self.steps.to, strict=True):
            chosen[span] = int(place)
            found.append(self.allocation(chosen))
        return found

    def allocation(self, places: Sequence[int], bound: float = inf) -> Allocation:
        """Places among the types worth having, as an allocation; its damage bounds it, too."""
        chosen = tuple(ts[p] for ts, p in zip(self.types, places, strict=True))
        costs = [s.costs[c] for s, c in zip(self.spans, chosen, strict=True)]
        damage = sum(c.damage for c in costs)
        seconds = sum(c.seconds for c in costs)
        return Allocation(
            chosen, sum(c.size_bytes for c in costs), damage, seconds, min(bound, damage)
        )

    def solve(self, max_bytes: int) -> Allocation:
        """Branch and bound, breadth first over spans."""
        least = int(sum(s[0] for s in self.size))
        if least > max_bytes:
            raise InputError(
                f"the smallest mix has {size(least)}, and at most {size(max_bytes)} were asked for",
                hint="allow a larger size, or smaller types",
            )
        # More room than all of the largest take is no room, and may be more than an integer holds.
        max_bytes = min(max_bytes, int(sum(s.max() for s in self.size)))
        best, bound = inf, inf
        found: tuple[int, int, int] | None = None
        """(spans taken, state, steps after it) of the best mix so far."""
        order = self.steps.by_doubt(max_bytes, self.size, self.damage)
        levels: list[tuple[Ints, Ints]] = []
        """Of every span taken: each state's parent, and its place among the span's types."""
        sizes, damages = np.zeros(1, np.int64), np.zeros(1)
        for taken in range(len(order) + 1):
            rest_bytes, rest_damage = self.steps.relaxed(order[taken:], self.size, self.damage)
            room = max_bytes - sizes
            lower = damages + np.interp(room, rest_bytes, rest_damage)
            lower[room < rest_bytes[0]] = inf
            whole = np.maximum(np.searchsorted(rest_bytes, room, side="right") - 1, 0)
            upper = np.where(np.isfinite(lower), damages + rest_damage[whole], inf)
            if upper.min() < best:
                state = int(upper.argmin())
                best, found = float(upper[state]), (taken, state, int(whole[state]))
            keep = np.nonzero(lower < best - _ROUNDING * abs(best))[0]
            if len(keep) > MOST_STATES:
                keep = keep[np.argsort(lower[keep], kind="stable")]
                bound = min(bound, float(lower[keep[MOST_STATES]]))
                keep = keep[:MOST_STATES]
            if taken == len(order) or not len(keep):
                break
            span = order[taken]
            sizes, damages, parent, place = _extended(
                sizes[keep], damages[keep], self.size[span], self.damage[span]
            )
            levels.append((keep[parent], place))
        assert found is not None
        mix = self.allocation(self._places(order, levels, *found), min(bound, best))
        # Sums of the same damages in another order differ by rounding of what was summed.
        rounding = _ROUNDING * sum(float(np.abs(d).max()) for d in self.damage)
        return replace(mix, bound=mix.damage) if mix.damage - mix.bound <= rounding else mix

    def _places(
        self,
        order: Sequence[int],
        levels: Sequence[tuple[Ints, Ints]],
        taken: int,
        state: int,
        whole: int,
    ) -> list[int]:
        """The mix that ends in ``state``, with the first ``whole`` steps of the spans after it."""
        places = [0] * len(self.spans)
        span, to = self.steps.among(order[taken:])
        for n in range(whole):
            places[span[n]] = int(to[n])
        for level in range(taken - 1, -1, -1):
            parents, of = levels[level]
            places[order[level]] = int(of[state])
            state = int(parents[state])
        return places


@dataclass(frozen=True, eq=False)
class _Steps:
    """Steps along all spans' convex hulls, those that save most damage a byte first.

    Taken in this order from every span's smallest type, any number of them is a mix.
    """

    span: Ints
    to: Ints
    size: Ints
    """Bytes that a step adds."""
    damage: Floats
    """What it adds to the damage: never above 0."""

    @classmethod
    def of(cls, sizes: Sequence[Ints], damages: Sequence[Floats]) -> _Steps:
        rows: list[tuple[float, int, int, int, float]] = []
        for span, (size_of, damage_of) in enumerate(zip(sizes, damages, strict=True)):
            slope = -inf
            hull = _hull(size_of, damage_of)
            for a, b in pairwise(hull):
                bytes_, saved = int(size_of[b] - size_of[a]), float(damage_of[b] - damage_of[a])
                slope = max(slope, saved / bytes_)  # never out of order by rounding
                rows.append((slope, span, b, bytes_, saved))
        rows.sort(key=lambda row: row[0])
        span_of, to, bytes_of, saved_of = [[row[n] for row in rows] for n in (1, 2, 3, 4)]
        return cls(
            np.array(span_of, np.int64),
            np.array(to, np.int64),
            np.array(bytes_of, np.int64),
            np.array(saved_of, np.float64),
        )

    def among(self, spans: Sequence[int]) -> tuple[Ints, Ints]:
        """(span, place) of the steps of some spans, in order."""
        mine = np.isin(self.span, np.asarray(spans, np.int64))
        return self.span[mine], self.to[mine]

    def relaxed(
        self, spans: Sequence[int], sizes: Sequence[Ints], damages: Sequence[Floats]
    ) -> tuple[Floats, Floats]:
        """(bytes, damage) of the corners of the least damage of ``spans`` by their bytes, where a
        span may be split between types."""
        mine = np.isin(self.span, np.asarray(spans, np.int64))
        bytes_ = np.concatenate([[sum(int(sizes[s][0]) for s in spans)], self.size[mine]])
        damage = np.concatenate([[sum(float(damages[s][0]) for s in spans)], self.damage[mine]])
        return np.cumsum(bytes_, dtype=np.float64), np.cumsum(damage)

    def by_doubt(
        self, max_bytes: int, sizes: Sequence[Ints], damages: Sequence[Floats]
    ) -> list[int]:
        """Spans by how little their second choice is worse than their first, at the price of a
        byte that fills ``max_bytes``."""
        bytes_, _ = self.relaxed(range(len(sizes)), sizes, damages)
        at = min(int(np.searchsorted(bytes_, max_bytes, side="right")) - 1, len(self.size) - 1)
        price = -self.damage[at] / self.size[at] if len(self.size) else 0.0

        def doubt(span: int) -> float:
            priced = np.sort(damages[span] + price * sizes[span])
            return float(priced[1] - priced[0]) if len(priced) > 1 else inf

        return sorted(range(len(sizes)), key=doubt)


def _worth_having(span: SpanCosts) -> list[int]:
    """Its types by rising bytes, without those that are no smaller than one of no more damage."""
    kept: list[int] = []
    costs = span.costs
    for index in sorted(range(len(costs)), key=lambda n: (costs[n].size_bytes, costs[n].damage)):
        if not kept or costs[index].damage < costs[kept[-1]].damage:
            kept.append(index)
    return kept


def _hull(sizes: Ints, damages: Floats) -> list[int]:
    """Places on the lower convex hull of points of rising size and falling damage."""
    hull: list[int] = []
    for c in range(len(sizes)):
        while len(hull) > 1:
            a, b = hull[-2:]
            over = (damages[b] - damages[a]) * float(sizes[c] - sizes[a])
            if over < (damages[c] - damages[a]) * float(sizes[b] - sizes[a]):
                break
            hull.pop()
        hull.append(c)
    return hull


def _extended(
    sizes: Ints, damages: Floats, more_bytes: Ints, more_damage: Floats
) -> tuple[Ints, Floats, npt.NDArray[np.intp], Ints]:
    """States with every type of one more span: their sizes, damages, parents and types, without
    those that another is no larger than and has no more damage than."""
    width = len(more_bytes)
    every_size = (sizes[:, None] + more_bytes).ravel()
    every_damage = (damages[:, None] + more_damage).ravel()
    order = np.lexsort((every_damage, every_size))
    ordered = every_damage[order]
    before = np.concatenate([[inf], np.minimum.accumulate(ordered)[:-1]])
    kept = order[ordered < before]
    return every_size[kept], every_damage[kept], kept // width, (kept % width).astype(np.int64)
