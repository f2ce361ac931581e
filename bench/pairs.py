"""Paired timings: two commands run in turns on one machine, so that its moods hit both alike."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.study import Study


@dataclass(frozen=True)
class Side:
    """One of the two: commands run one after the other, timed together.

    ``prepare`` runs before each timing, outside of it.
    """

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None

    def __str__(self) -> str:
        first = shlex.join(self.commands[0])
        return (
            first if len(self.commands) == 1 else f"{len(self.commands)} commands, first: {first}"
        )

    def seconds(self) -> float:
        """What the commands take; SystemExit where one fails."""
        if self.prepare is not None:
            self.prepare()
        environment = {**os.environ, **self.environment}
        started = time.perf_counter()
        for command in self.commands:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            if done.returncode != 0:
                sys.stderr.write(done.stderr.decode(errors="replace")[-2000:])
                raise SystemExit(f"exit {done.returncode}: {shlex.join(command)}")
        return time.perf_counter() - started


def paired(
    name: str, subject: Side, reference: Side, repeats: int, most_ratio: float, extra_s: float = 0
) -> Study:
    """Both sides timed ``repeats`` times, each first in turn; one warm-up each when short.

    The bound: the subject's median is at most ``most_ratio`` times the reference's plus
    ``extra_s``. The lines hold all that is needed to repeat it.
    """
    if repeats > 2:
        subject.seconds()
        reference.seconds()
    mine, theirs = [], []
    for index in range(repeats):
        if index % 2:
            theirs.append(reference.seconds())
            mine.append(subject.seconds())
        else:
            mine.append(subject.seconds())
            theirs.append(reference.seconds())
    ratios = [s / r for s, r in zip(mine, theirs, strict=True)]
    extra = f" + {extra_s:g} s" if extra_s else ""
    lines = (
        f"{name}: {median(mine) / median(theirs):.2f}x (pairs {min(ratios):.2f} to "
        f"{max(ratios):.2f}, n={repeats}), at most {most_ratio:g}x{extra}",
        f"  {median(mine):9.3f} s  {subject}",
        f"  {median(theirs):9.3f} s  {reference}",
    )
    return Study(lines, median(mine) <= most_ratio * median(theirs) + extra_s)
