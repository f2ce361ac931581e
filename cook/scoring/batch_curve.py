"""What batches of a model take: curves over their width and the depth of the context, and what a
server's steps cost by them (docs/internals/scoring.md#prices)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.record.record import PromptRun
from cook.scoring.simulate import RULES, Profile

OUTSIDE = 0.05
"""A measured curve is asked about this share beyond its ends at most, and answers with the end."""


@dataclass(frozen=True)
class BatchCurve:
    """Seconds of one decode of b tokens at a context depth.

    ``seconds`` [depths, widths], measured at ``depths`` (rising) and ``widths`` (rising, from 1).
    Between points linear, and a single depth says the same of every depth. Beyond its ends it
    refuses: a line drawn on from noisy points is no measurement. A ``typed`` curve, of a few
    numbers that somebody gave, goes on with its last slope beyond its widths.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    typed: bool = False

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
        """Seconds of a batch of ``width`` tokens at ``depth`` (arrays broadcast).

        InputError where that lies farther than :data:`OUTSIDE` beyond what was measured.
        """
        w, d = np.broadcast_arrays(np.asarray(width, float), np.asarray(depth, float))
        if not self.typed:
            w = _inside(w, self.widths, "a batch of {} tokens", "{} to {} tokens at once")
        rows = np.array([_line(w, self.widths, row) for row in self.seconds])
        if len(self.depths) == 1:
            return np.asarray(rows[0])
        d = _inside(d, self.depths, "a batch after {} tokens", "depths of {} to {} tokens")
        grid = np.asarray(self.depths, float)
        i = np.clip(np.searchsorted(grid, d, side="right") - 1, 0, len(grid) - 2)
        part = (d - grid[i]) / (grid[i + 1] - grid[i])
        flat = rows.reshape(len(grid), -1)
        low = flat[i.ravel(), np.arange(flat.shape[1])].reshape(w.shape)
        high = flat[i.ravel() + 1, np.arange(flat.shape[1])].reshape(w.shape)
        return np.asarray(low + part * (high - low))

    def read(self, tokens: npt.ArrayLike, depth: npt.ArrayLike) -> Floats:
        """Seconds of ``tokens`` at ``depth``: more than were timed at once in several batches."""
        if self.typed:
            return self.at(tokens, depth)
        most = self.widths[-1]
        whole, rest = np.divmod(np.asarray(tokens), most)
        last = np.where(rest > 0, self.at(np.maximum(rest, 1), depth), 0.0)
        return np.asarray(whole * self.at(most, depth) + last)


def _inside(x: Floats, ends: Sequence[int], asked: str, measured: str) -> Floats:
    """``x`` within the measured ``ends``; those a little beyond are the end itself."""
    low, high = ends[0], ends[-1]
    outside = x[(x < low * (1 - OUTSIDE)) | (x > high * (1 + OUTSIDE))]
    if outside.size:
        raise InputError(
            f"{asked.format(f'{outside.flat[0]:g}')} is to be priced, and measured were "
            f"{measured.format(low, high)}",
            hint="record a trace whose prompts and replies reach there, and it is timed so far",
        )
    return np.clip(x, low, high)


def _line(x: Floats, xs: Sequence[int], ys: Sequence[float]) -> Floats:
    """Piecewise linear, going on with the last slope beyond the end, which never falls."""
    if len(xs) == 1:
        return np.full(x.shape, ys[0])
    inside = np.interp(x, xs, ys)
    slope = max((ys[-1] - ys[-2]) / (xs[-1] - xs[-2]), 0.0)
    return np.asarray(inside + np.maximum(x - xs[-1], 0.0) * slope)


@dataclass(frozen=True)
class Timings:
    """What steps of one server cost on one machine, with the flags to be deployed. In seconds.

    ``verify``: the target's batch with logits for every token; ``draft``: the draft's batch with
    logits for the last (``None`` without a draft). ``*_sample_s``: the engine's sampler for one
    token. ``*_prefill``: a whole prompt by its tokens; ``reads_by_rows``: that of the target where
    it hangs on the most rows of logits that a batch of the server may have, these rising.
    ``reload_s``: what a step that drafts takes beyond its batches one by one.
    """

    verify: BatchCurve
    draft: BatchCurve | None = None
    target_sample_s: float = 0.0
    draft_sample_s: float = 0.0
    target_prefill: BatchCurve | None = None
    draft_prefill: BatchCurve | None = None
    reads_by_rows: tuple[tuple[int, BatchCurve], ...] = ()
    reload_s: float = 0.0

    def prompt_s(self, tokens: int, rows: int = 1, *, drafts: bool = True) -> float:
        """Seconds that a request takes on top of its decoding, all models; 0 if not measured.

        ``rows`` of logits that a batch may have; ``drafts``: whether the draft reads the prompt.
        """
        known = (curve for most, curve in self.reads_by_rows if rows <= most)
        read = next(known, self.target_prefill)
        timed = 0.0 if read is None else float(read.at(tokens, 0))
        return timed + (self.draft_prompt_s(tokens) if drafts else 0.0)

    def draft_prompt_s(self, tokens: int) -> float:
        """Seconds in which the draft reads a prompt; 0 if not measured."""
        return 0.0 if self.draft_prefill is None else float(self.draft_prefill.at(tokens, 0))

    def without_draft(self) -> Timings:
        """The target alone, as timed: what a server with a draft takes beyond it is not its own."""
        return Timings(self.verify, None, self.target_sample_s, target_prefill=self.target_prefill)


MOST_TAKEN_OFF = 0.9
"""Share of what a server calls decoding that may be reading of the prompt: some decoding was."""


def with_prompt_time_separated(
    live: PromptRun, timings: Timings | None, profile: Profile
) -> PromptRun:
    """``live`` with decoding and prompt apart as on every engine: the draft's reading of the prompt
    is taken out of the decoding where the engine counts it there.

    As long as the answer tells, or else as was timed (where neither does, as it is): a draft that
    was timed apart read 4,096 tokens in up to a fifth less time than with its target, which is no
    part of its decoding. At most :data:`MOST_TAKEN_OFF` of that: some decoding there was.
    """
    if not RULES[profile].reads_late or not live.draft_n or live.draft_prompt_ms is not None:
        return live
    read_ms = live.late_reading_ms
    if read_ms is None and timings is not None and timings.draft_prefill is not None:
        read_ms = 1000 * timings.draft_prompt_s(live.prompt_n)
    if read_ms is None:
        return live
    moved = min(read_ms, MOST_TAKEN_OFF * live.predicted_ms)
    return replace(
        live,
        prompt_ms=live.prompt_ms + moved,
        predicted_ms=live.predicted_ms - moved,
        draft_prompt_ms=moved,
        late_reading_ms=None,
    )


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


def curve_over_link(curve: BatchCurve, link: Link, vocabulary: int, rows: int = 1) -> BatchCurve:
    """``curve`` of a draft's batches, were it on the other end of ``link``."""
    more = link.decode_s(vocabulary, rows)
    return replace(curve, seconds=tuple(tuple(s + more for s in row) for row in curve.seconds))
