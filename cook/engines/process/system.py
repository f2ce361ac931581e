"""What Linux says of running processes: memory, processor time, out-of-memory kills.

Every function answers ``None`` or zero where the system does not say (another system, a
process that is gone); none raises.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Activity:
    """Work a process group has done so far: CPU seconds, and page faults that went to disk."""

    cpu_s: float
    major_faults: int


def peak_rss_bytes(pid: int) -> int:
    """High-water mark of the resident set of ``pid`` since its exec, or since it was forgotten,
    mapped files included."""
    return _status_bytes(pid, b"VmHWM:")


def forget_peak_rss(pid: int) -> bool:
    """Let the high-water mark of ``pid`` start again at what it holds now; whether that was
    possible (proc_pid_clear_refs(5))."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")
    except OSError:
        return False
    return True


def anonymous_bytes(pid: int) -> int:
    """Memory of ``pid`` that is no file's: what no process shares and no disk has."""
    return _status_bytes(pid, b"RssAnon:")


def _status_bytes(pid: int, field: bytes) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def process_cpu_s(pid: int) -> float | None:
    """Processor time that a process has taken so far; None where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return sum(map(int, stat[stat.rfind(b")") + 2 :].split()[11:13])) / _TICKS


def waited_for_cpu_s(pid: int) -> dict[str, float]:
    """How long each thread, by its id, was ready to run while others had its processor (run_delay
    in Linux, Documentation/scheduler/sched-stats.rst)."""
    waited = {}
    with suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError, IndexError):
                # Not by pathlib, for a fourth of the time: fifty times a second, a dozen threads.
                file = os.open(f"{thread.path}/schedstat", os.O_RDONLY)
                try:
                    waited[thread.name] = int(os.read(file, 64).split()[1]) / 1e9
                finally:
                    os.close(file)
    return waited


def group_activity(pgid: int) -> Activity | None:
    """Work done by the living members of process group ``pgid`` and their waited-for children."""
    cpu_ticks = faults = members = 0
    try:
        pids = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        # The command name may hold spaces and parentheses: fields start after the last ")".
        fields = stat[stat.rfind(b")") + 2 :].split()
        if len(fields) < 15 or int(fields[2]) != pgid:
            continue
        members += 1
        faults += int(fields[9]) + int(fields[10])
        cpu_ticks += sum(int(field) for field in fields[11:15])
    return Activity(cpu_ticks / _TICKS, faults) if members else None


def oom_kills() -> int:
    """Processes this machine (or container) has killed for want of memory so far."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with suppress(OSError):
            found = re.search(rb"^oom_kill (\d+)$", Path(path).read_bytes(), re.MULTILINE)
            total += int(found[1]) if found else 0
    return total


def memory_limit_bytes() -> int:
    """Memory that a process here may use: the machine's, or the container's if less."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # there is no such file, or it says `max`
        return min(limit, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return limit
