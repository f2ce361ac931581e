"""A draft on another machine than its target: what the way between them adds to its decodes.

llama.cpp's RPC backend sends a decode's inputs and its graph without waiting, and waits once for
its answer, the logits of each row that was asked for
(docs/internals/engines.md#a-draft-on-another-machine). So a decode of the draft takes a round trip
more than on the spot, whatever it holds, and as long as its logits take to arrive. A cycle of n
drafted tokens has n + 1 of them (n where nothing is mirrored): drafting over a link pays where a
round trip is short compared with a token of the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cook.errors import InputError
from cook.scoring.price import BatchCurve

LOGIT_BYTES = 4


@dataclass(frozen=True)
class Link:
    """``round_trip_s`` of a small question and its answer; ``bytes_per_s`` None: as fast as you
    like."""

    round_trip_s: float
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.round_trip_s < 0 or (self.bytes_per_s is not None and not self.bytes_per_s > 0):
            raise InputError(f"impossible link: {self}")

    def decode_s(self, vocabulary: int, rows: int = 1) -> float:
        """Seconds that a decode with logits of ``rows`` tokens takes beyond one on the spot."""
        arriving = rows * vocabulary * LOGIT_BYTES
        return self.round_trip_s + (arriving / self.bytes_per_s if self.bytes_per_s else 0.0)


def behind(curve: BatchCurve, link: Link, vocabulary: int, rows: int = 1) -> BatchCurve:
    """``curve`` of a draft's batches, were it on the other end of ``link``."""
    more = link.decode_s(vocabulary, rows)
    return replace(curve, seconds=tuple(tuple(s + more for s in row) for row in curve.seconds))
