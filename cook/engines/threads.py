"""How many threads a model runs on by default."""

from __future__ import annotations

import os
from pathlib import Path

_SYSTEM = Path("/sys/devices")


def engine_threads(system: Path = _SYSTEM) -> int:
    """The number that both engines' tools take by default: physical cores, of a processor with
    efficiency cores those that are none (``cpu_get_num_math`` of their ``common.cpp``)."""
    siblings: list[str] = []
    while (
        listed := _read(system / f"system/cpu/cpu{len(siblings)}/topology/thread_siblings")
    ) != "":
        siblings.append(listed)
    efficient = _processors(_read(system / "cpu_atom/cpus"))
    if efficient and len(os.sched_getaffinity(0)) == len(siblings):
        count = cpu = 0
        while cpu < len(siblings):  # as they count: the sibling of a core is passed over
            count, cpu = (count, cpu + 1) if cpu in efficient else (count + 1, cpu + 2)
        return count
    if siblings:
        return len(set(siblings))
    logical = os.cpu_count() or 4
    return logical if logical <= 4 else logical // 2


def default_threads(system: Path = _SYSTEM) -> int:
    """Threads of a model whose arguments name none, in the servers and in the worker.

    As many as the engine takes by default, but no more than this process may use, which the
    engines do not look at.
    """
    return min(engine_threads(system), len(os.sched_getaffinity(0)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _processors(listed: str) -> frozenset[int]:
    """Of ``16-23,30``."""
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
