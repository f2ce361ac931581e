"""How fast this machine is at each kind of step, learned from those that it ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from timeit import repeat
from typing import Any

import numpy as np

from cook.engines.threads import engine_threads
from cook.graph.cost import READ_BYTES_S, Cost
from cook.graph.step import Step
from cook.graph.store import Artifact

FLOPS = 60e9
"""Of a product of matrices on the reference machine of :mod:`cook.graph.cost`."""
PROBE_BYTES = 64 << 20
"""Of memory, over all cores: more than most caches, and less than a plan takes itself."""
PROBE_ROWS = 768
PROBES = 8
"""The fastest counts: what else runs at the moment only slows a probe down."""


@dataclass(frozen=True)
class MachinePace:
    """Seconds that this machine takes for a nominal second, by kind of step."""

    kinds: Mapping[tuple[str, str | None], float]
    """(kind, digest of the engine) -> median over the steps that were run here."""
    machine: tuple[float, float]
    """Memory's and processor's, of kinds that were not: the median of all that were, or probed."""
    probed: bool

    @classmethod
    def of(cls, history: Sequence[Artifact]) -> MachinePace:
        found: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        for artifact in history:
            if artifact.nominal_s:
                engine = artifact.key_parts.get("engine") or {}
                for digest in {engine.get("digest"), None}:
                    ratio = artifact.seconds / artifact.nominal_s
                    found[artifact.kind, digest].append(ratio)
        kinds = {key: median(ratios) for key, ratios in found.items()}
        if not kinds:
            probed = READ_BYTES_S / memory_bytes_s(), FLOPS / processor_flops()
            return cls({}, probed, probed=True)
        every = median(kinds[key] for key in kinds if key[1] is None)
        return cls(kinds, (every, every), probed=False)

    def seconds(self, step: Step[Any], cost: Cost | None) -> tuple[float | None, str | None]:
        """About how long ``step``, which costs so much, takes here, and what that is estimated
        from; or None, and why."""
        if cost is None:
            return None, "its size is known only when its inputs are there"
        engine = (step.key_parts["engine"] or {}).get("digest")
        for digest, whose in ((engine, "this"), (None, "another")):
            if (pace := self.kinds.get((step.kind, digest))) is not None:
                return cost.nominal_s * pace, f"as {whose} engine's here, by size"
        how = "by size and a probe of this machine" if self.probed else "by size and other steps"
        return cost.seconds(*self.machine), how


def memory_bytes_s() -> float:
    """Bytes a second that all cores together read from memory, as it is now."""
    cores = engine_threads()
    with ThreadPoolExecutor(cores) as pool:
        blocks = list(pool.map(np.ones, [PROBE_BYTES // cores // 8] * cores))
        rate = _rate(lambda: list(pool.map(np.sum, blocks)))
    return rate * sum(block.nbytes for block in blocks)


def processor_flops() -> float:
    """Floating-point operations a second of a product of matrices, likewise."""
    matrix = np.ones((PROBE_ROWS, PROBE_ROWS), np.float32)
    return _rate(lambda: matrix @ matrix) * 2 * PROBE_ROWS**3


def _rate(work: Callable[[], object]) -> float:
    """How often ``work`` is done in a second, at best."""
    return 1 / min(repeat(work, number=1, repeat=PROBES))
