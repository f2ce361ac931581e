"""What a step costs, in work that any machine does: models loaded, weights read, files copied.

Counted on a reference machine that makes nominal seconds. What a machine makes of them is learned
from every step that it has run (:mod:`cook.job.machine_pace`).
"""

from __future__ import annotations

from dataclasses import dataclass

# The reference machine: a few cores of a server with two channels of memory.
START_S = 0.4
"""A program started, its libraries loaded."""
LOAD_BYTES_S = 1.0e9
READ_BYTES_S = 8.0e9
"""Weights read to decode one token."""
DECODE_S = 4e-4
"""Of one decode, whatever the model: graphs, threads, sampling, the request."""
COMPUTE_BYTES_S = 40e9
"""Weights, two bytes each whatever their type, times tokens, of text read in batches."""
COPY_BYTES_S = 300e6


@dataclass(frozen=True)
class Cost:
    """The work of one step.

    ``loads``: bytes of each model that is loaded, which of steps that share a worker the first one
    does (:mod:`cook.engines.worker.kept_workers`); ``read_bytes`` of weights, for ``decodes``;
    ``computed_bytes``: two for each weight that a token is computed with, times tokens read in
    batches; ``arithmetic_s`` of other arithmetic, on the reference machine; ``copied_bytes`` of
    files. ``memory_bytes`` of the models that are in memory at once; None: of the largest that is
    loaded.
    """

    loads: tuple[float, ...] = ()
    read_bytes: float = 0.0
    decodes: float = 0.0
    computed_bytes: float = 0.0
    arithmetic_s: float = 0.0
    copied_bytes: float = 0.0
    memory_bytes: float | None = None

    @property
    def nominal_s(self) -> float:
        """Seconds on the reference machine."""
        return self.seconds(1.0, 1.0)

    @property
    def held_bytes(self) -> int:
        """Memory that its models take."""
        return round(max(self.loads, default=0) if self.memory_bytes is None else self.memory_bytes)

    def seconds(self, memory: float, processor: float) -> float:
        """Seconds on a machine whose memory and processor take so many times as long."""
        return (
            sum(self.loads) / LOAD_BYTES_S
            + self.read_bytes / READ_BYTES_S
            + self.copied_bytes / COPY_BYTES_S
        ) * memory + (
            START_S * max(len(self.loads), 1)
            + self.decodes * DECODE_S
            + self.computed_bytes / COMPUTE_BYTES_S
            + self.arithmetic_s
        ) * processor
