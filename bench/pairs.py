"""Paired timings: two commands run in turns on one machine, so that its moods hit both alike."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Side:
    """One of the two: commands run one after the other, timed together.

    ``prepare`` runs before each timing, outside of it. ``accept`` are good exit statuses.
    """

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None

    def shown(self) -> str:
        if len(self.commands) == 1:
            return shlex.join(self.commands[0])
        return f"{len(self.commands)} commands, first: {shlex.join(self.commands[0])}"


@dataclass(frozen=True)
class Pair:
    """``subject`` may take at most ``most_ratio`` times the ``reference`` plus ``most_extra_s``."""

    name: str
    subject: Side
    reference: Side
    most_ratio: float
    most_extra_s: float
    repeats: int


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat, in order; the two lists are paired."""

    pair: Pair
    subject_s: tuple[float, ...]
    reference_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of the subject over median of the reference."""
        return statistics.median(self.subject_s) / statistics.median(self.reference_s)

    @property
    def paired_ratios(self) -> tuple[float, ...]:
        return tuple(s / r for s, r in zip(self.subject_s, self.reference_s, strict=True))

    @property
    def within(self) -> bool:
        reference = statistics.median(self.reference_s)
        limit = self.pair.most_ratio * reference + self.pair.most_extra_s
        return statistics.median(self.subject_s) <= limit


def measure(pair: Pair) -> Timing:
    """Time both sides ``repeats`` times, swapping who goes first; one warm-up each when short."""
    if pair.repeats > 2:
        _seconds(pair.subject)
        _seconds(pair.reference)
    subject: list[float] = []
    reference: list[float] = []
    for index in range(pair.repeats):
        order = [(pair.subject, subject), (pair.reference, reference)]
        for side, times in order if index % 2 == 0 else reversed(order):
            times.append(_seconds(side))
    return Timing(pair, tuple(subject), tuple(reference))


def _seconds(side: Side) -> float:
    if side.prepare is not None:
        side.prepare()
    environment = {**os.environ, **side.environment}
    started = time.perf_counter()
    for command in side.commands:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode != 0:
            sys.stderr.write(done.stderr.decode(errors="replace")[-2000:])
            raise SystemExit(f"exit {done.returncode}: {shlex.join(command)}")
    return time.perf_counter() - started


def describe(timing: Timing) -> str:
    """The result with everything needed to repeat and to doubt it."""
    pair = timing.pair
    low, high = min(timing.paired_ratios), max(timing.paired_ratios)
    extra = f" + {pair.most_extra_s:g} s" if pair.most_extra_s else ""
    verdict = "ok" if timing.within else "TOO SLOW"
    subject, reference = (
        statistics.median(times) for times in (timing.subject_s, timing.reference_s)
    )
    return (
        f"{pair.name}: {timing.ratio:.2f}x (pairs {low:.2f} to {high:.2f}, n={pair.repeats}), "
        f"at most {pair.most_ratio:g}x{extra}: {verdict}\n"
        f"  {subject:9.3f} s  {pair.subject.shown()}\n"
        f"  {reference:9.3f} s  {pair.reference.shown()}"
    )
