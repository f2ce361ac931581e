"""An importance matrix in memory; :mod:`cook.formats.imatrix` reads and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ImatrixEntry:
    """``sums`` [experts, ne0] of x^2 and ``counts`` [experts], both float32.

    Counts are tokens (GGUF) or calls (.dat); 0 is an expert that saw nothing. Only the ratio
    ``sums / counts`` means anything across formats.
    """

    sums: Floats
    counts: Floats

    @property
    def experts(self) -> int:
        """Rows of ``sums``: 1 for a dense tensor, and for any entry of an ungrouped .dat."""
        return len(self.counts)

    def mean(self) -> Floats:
        """Mean x^2 [experts, ne0] as quantization uses it: 1 where an expert saw nothing."""
        import numpy as np

        counts = self.counts[:, None]
        seen = counts > 0
        result: Floats = np.where(seen, self.sums / np.where(seen, counts, 1), 1)
        return result.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Imatrix:
    """All entries by weight name. ``chunk_size`` (tokens) is None for a .dat, which lacks it."""

    entries: Mapping[str, ImatrixEntry]
    datasets: tuple[str, ...]
    chunk_count: int
    chunk_size: int | None
    format: Literal["gguf", "dat"]
