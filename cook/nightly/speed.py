"""How a speed changed and how certain that is: requests paired by prompt, and server starts.

A request's time has noise of its own, which its residual shows. All requests of one server start
share an error as well: no number of prompts averages it out, it is divided by the starts only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from cook.nightly.history import Night
from cook.record.record import PromptFigures
from cook.scoring.compare import APART, student_quantile
from cook.units import plural

FEWEST_NIGHTS, MOST_NIGHTS = 3, 40
"""Nights that the noise is measured from: the fewest, and the last so many."""
EFFICIENCY = 1.5
"""Successive differences give two thirds of the degrees of freedom of deviations from a mean, but a
loss that creeps does not inflate them."""

Sides = tuple[PromptFigures, ...]
"""A candidate's requests, and after them those that its speed is divided by, if any."""


@dataclass(frozen=True)
class StartError:
    """Standard deviation of the log speed of one server start; ``nights`` 0: it is assumed."""

    deviation: float = APART
    freedom: float = 1e6
    nights: int = 0


@dataclass(frozen=True)
class SpeedChange:
    """The log of a speed or speedup over the reference's.

    ``request_error``: its standard error by the requests; ``starts``: the variance that server
    starts add, in units of one start's; ``servers``: the same with one start of each server.
    """

    change: float
    request_error: float
    request_freedom: int
    starts: float
    servers: float
    requests: int
    noise: StartError

    @property
    def error(self) -> float:
        return math.hypot(self.request_error, self.noise.deviation * math.sqrt(self.starts))

    def reach(self, level: float) -> float:
        """Standard errors that are exceeded by chance ``level``, at the degrees of freedom of
        :attr:`error` (Welch and Satterthwaite)."""
        request, start = self.request_error**2, self.noise.deviation**2 * self.starts
        parts = request**2 / self.request_freedom + start**2 / self.noise.freedom
        return student_quantile(1 - level, max(1, int((request + start) ** 2 / (parts or 1.0))))

    def power_text(self, level: float, tolerance: float) -> str:
        """The smallest loss that is found in 95 of 100 nights, and how many starts it takes for a
        loss of ``tolerance`` (a log ratio) to be outside of the interval."""
        reach = self.reach(level)
        loss = -math.expm1(-max(reach * self.error, tolerance) - self.reach(0.05) * self.error)
        room = (tolerance / reach) ** 2 - self.request_error**2
        wanted = math.ceil(self.servers * self.noise.deviation**2 / room) if room > 0 else 0
        needed = f"{plural(max(wanted, 1), 'start')} a side" if room > 0 else "more prompts"
        source = f"measured in {self.noise.nights} nights" if self.noise.nights else "assumed"
        return (
            f"{plural(round(self.servers / self.starts), 'start')} a side and {self.requests} "
            f"requests find a loss of {loss:.1%} in 95 of 100 nights; the tolerance of "
            f"{-math.expm1(-tolerance):.1%} needs {needed} at a noise of "
            f"{self.noise.deviation:.1%} a start ({source})"
        )


def speed_change(
    now: Sides, earlier: Sequence[Sides], noise: StartError, time: str
) -> SpeedChange | None:
    """The change of a speed (one side) or of a speedup (two) against the mean of ``earlier``.

    Speeds are tokens over ``time``, sums over the requests that all of them have; with nothing
    ``earlier`` the log of the figure itself. None where fewer than two requests are common.
    """
    tables = [_paired(sides, time) for sides in (now, *earlier)]
    keys = [key for key in tables[0] if all(key in table for table in tables)]
    count = len(keys)
    if count < 2:
        return None
    rows = np.array([[row for table in tables for row in table[key]] for key in keys])
    signs = np.array([1.0, -1.0])[: len(now)]
    signs = np.concatenate([signs, *[-signs / max(len(earlier), 1)] * len(earlier)])
    tokens, ms = rows[:, :, :2].sum(axis=0).T
    if min(*tokens, *ms) <= 0:
        return None
    parts = [np.unique(start, return_counts=True)[1] / count for start in rows[:, :, 2].T]
    starts = sum(s**2 * (part**2).sum() for s, part in zip(signs, parts, strict=True))
    # What each request adds to the logarithm, to first order. The error of starts is counted apart:
    # only residuals within a start are the requests'.
    shares = (rows[:, :, 0] / tokens - rows[:, :, 1] / ms) @ signs
    group = np.unique(rows[:, : len(now), 2], axis=0, return_inverse=True)[1].ravel()
    sizes = np.bincount(group)
    freedom = count - 1
    if count > len(sizes):
        shares -= (np.bincount(group, shares) / sizes)[group]
        freedom = count - len(sizes)
    error = math.sqrt(float((shares**2).sum()) * count / freedom)
    change, servers = float(signs @ np.log(tokens / ms)), float((signs**2).sum())
    return SpeedChange(change, error, freedom, float(starts), servers, count, noise)


@lru_cache(maxsize=4096)
def _paired(sides: Sides, time: str) -> dict[tuple[str, int], list[tuple[float, float, int]]]:
    """(prompt, pass) -> (tokens, ms, start) of each side, of requests dealt in one block."""
    tables = []
    for side in sides:
        blocks, starts = (column or (0,) * len(side.ids) for column in (side.block, side.start))
        rows = zip(side.tokens, getattr(side, time), starts, strict=True)
        tables.append(dict(zip(zip(side.ids, blocks, strict=True), rows, strict=True)))
    found: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    passes: Counter[str] = Counter()
    for key in tables[0]:
        if all(key in table for table in tables):
            found[key[0], passes[key[0]]] = [table[key] for table in tables]
            passes[key[0]] += 1
    return found


def start_error(nights: Sequence[Night], time: str, plain: str | None = None) -> StartError:
    """How much server starts differ, from what changed between successive ``nights``.

    The mean change of a night's candidates is taken out, which is the machine's or the engine's.
    ``plain`` names an engine: of no draft's speed alone, nothing taken out.
    """
    total = weight = freedom = 0.0
    for then, now in pairwise(nights[-MOST_NIGHTS:]):
        for side in ("prompts", "reference"):
            pairs = [
                (getattr(mine, side), getattr(then.candidate(mine.name), side, None))
                for mine in now.live
                if plain is None or (side == "prompts" and mine == now.no_draft(plain))
            ]
            found = [_night_change(*pair, time) for pair in pairs if None not in pair]
            changes = [change for change in found if change is not None]
            count = len(changes) - (plain is None)
            if count > 0:
                values = np.array([one.change for one in changes])
                values -= values.mean() if plain is None else 0.0
                requests = np.mean([one.request_error**2 for one in changes])
                total += float((values**2).sum() - count * requests)
                weight += count * float(np.mean([one.starts for one in changes]))
                freedom += count
    if len(nights) < FEWEST_NIGHTS or not weight:
        return StartError()
    deviation = math.sqrt(max(total, 0.0) / weight)
    return StartError(deviation, max(1.0, freedom / EFFICIENCY), min(len(nights), MOST_NIGHTS))


@lru_cache(maxsize=4096)
def _night_change(now: PromptFigures, then: PromptFigures, time: str) -> SpeedChange | None:
    return speed_change((now,), [(then,)], StartError(), time)
