"""How long a batch takes, by its width and the context depth: measured points, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cook.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BatchCurve:
    """Seconds of one decode of b tokens at a context depth.

    ``seconds`` [depths, widths], measured at ``depths`` (rising) and ``widths`` (rising, from 1).
    Between and beyond points linear; a single point is a constant.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shape = {len(row) for row in self.seconds}
        rising = all(
            list(axis) == sorted(set(axis)) and len(axis) for axis in (self.depths, self.widths)
        )
        if not rising or len(self.seconds) != len(self.depths) or shape != {len(self.widths)}:
            raise InputError(
                f"a curve of shape {len(self.seconds)} x {shape} does not fit its axes"
            )
        if any(not s > 0 for row in self.seconds for s in row):
            raise InputError("a measured time is not positive")

    def at(self, width: npt.ArrayLike, depth: npt.ArrayLike) -> Floats:
        """Seconds of a batch of ``width`` tokens at ``depth`` (arrays broadcast)."""
        w, d = np.broadcast_arrays(np.asarray(width, float), np.asarray(depth, float))
        rows = np.array([_line(w, self.widths, row) for row in self.seconds])
        if len(self.depths) == 1:
            return np.asarray(rows[0])
        grid = np.asarray(self.depths, float)
        i = np.clip(np.searchsorted(grid, d, side="right") - 1, 0, len(grid) - 2)
        part = (d - grid[i]) / (grid[i + 1] - grid[i])
        flat = rows.reshape(len(grid), -1)
        low = flat[i.ravel(), np.arange(flat.shape[1])].reshape(w.shape)
        high = flat[i.ravel() + 1, np.arange(flat.shape[1])].reshape(w.shape)
        value = low + part * (high - low)
        # extrapolated beyond the measured depths, but never below half the nearest measurement
        return np.asarray(np.maximum(value, 0.5 * np.minimum(low, high)))


def _line(x: Floats, xs: Sequence[int], ys: Sequence[float]) -> Floats:
    """Piecewise linear, going on with the last slope beyond the end."""
    if len(xs) == 1:
        return np.full(x.shape, ys[0])
    inside = np.interp(x, xs, ys)
    slope = max((ys[-1] - ys[-2]) / (xs[-1] - xs[-2]), 0.0)
    return np.asarray(inside + np.maximum(x - xs[-1], 0.0) * slope)
