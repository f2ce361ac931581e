"""Who else used the processors while something was timed?

A timing is worth little when another program ran beside it: two busy OpenMP programs on two
cores slow each other by orders of magnitude (docs/internals/engines.md#two-programs-at-once).
The kernel's own accounts tell: processor time of the whole machine, less that of the timed
processes and of cook.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TOLERATED_CORES = 0.15
"""Processor use by others, in cores, that is said nothing about: timers, the kernel, a shell."""


@dataclass(frozen=True)
class Watch:
    """A point in time to measure others' use of the processors from."""

    wall_s: float
    machine_cpu_s: float | None
    own_cpu_s: float

    @classmethod
    def start(cls) -> Watch:
        """Begin now."""
        return cls(time.monotonic(), _machine_cpu_s(), time.process_time())

    def others_cores(self, timed_cpu_s: float | None) -> float | None:
        """Cores kept busy by others since the start, on average.

        ``timed_cpu_s`` is the processor time that the timed processes took since then. None
        where the kernel does not tell (not Linux), or that time is unknown.
        """
        now = _machine_cpu_s()
        wall = time.monotonic() - self.wall_s
        if now is None or self.machine_cpu_s is None or timed_cpu_s is None or wall <= 0:
            return None
        ours = timed_cpu_s + time.process_time() - self.own_cpu_s
        return max(0.0, (now - self.machine_cpu_s - ours) / wall)


def told(others_cores: float | None) -> str | None:
    """A warning about contention, or None when there was none to speak of."""
    if others_cores is None or others_cores <= TOLERATED_CORES:
        return None
    return (
        f"other programs kept {others_cores:.1f} of {len(os.sched_getaffinity(0))} cores busy "
        "while this was timed; its speeds are not to be trusted"
    )


def _machine_cpu_s() -> float | None:
    """Processor time used on all processors since boot, without idle and waiting for disks."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _iowait, irq, softirq = (int(f) for f in fields[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / float(os.sysconf("SC_CLK_TCK"))
