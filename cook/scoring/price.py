"""Predicted speed of a draft: simulated cycles priced with measured times.

decode time = sum over steps [ t_v(L+1) + draft cost + sampling ], where the draft cost is,
for mainline, its single decodes plus one batch of L+1 that mirrors the verification; for engines
that keep the draft's cache, its single decodes plus whatever it has to catch up with. How long a
batch takes, by its width and the context depth, is read between measured points. Speed is
(tokens - 1) / time: the first token comes with the prompt. The reading of prompts, by both models,
is no part of it, wherever an engine counts it (:func:`with_prompt_time_separated`). Totals over
replies are sums of tokens over sums of times, that is token-weighted harmonic means
(docs/internals/scoring.md#prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.formats.trace_file import ReplyHead
from cook.record.measured import Figures
from cook.record.prompt_runs import PromptRun
from cook.record.record import CandidateKey
from cook.scoring.figures import figures
from cook.scoring.simulate import RULES, Profile, Simulation

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
    token. ``*_prefill``: a whole prompt by its tokens.
    """

    verify: BatchCurve
    draft: BatchCurve | None = None
    target_sample_s: float = 0.0
    draft_sample_s: float = 0.0
    target_prefill: BatchCurve | None = None
    draft_prefill: BatchCurve | None = None

    def prompt_s(self, tokens: int, *, drafts: bool = True) -> float:
        """Seconds that a request takes on top of its decoding, all models; 0 if not measured.

        ``drafts``: whether the draft reads the prompt.
        """
        timed = 0.0 if self.target_prefill is None else float(self.target_prefill.at(tokens, 0))
        return timed + (self.draft_prompt_s(tokens) if drafts else 0.0)

    def draft_prompt_s(self, tokens: int) -> float:
        """Seconds in which the draft reads a prompt; 0 if not measured."""
        return 0.0 if self.draft_prefill is None else float(self.draft_prefill.at(tokens, 0))

    def without_draft(self) -> Timings:
        """The target alone, as timed: what a server with a draft takes beyond it is not its own."""
        return Timings(self.verify, None, self.target_sample_s, target_prefill=self.target_prefill)


MOST_TAKEN_OFF = 0.9
"""Share of what a server calls decoding that may be reading of the prompt: some decoding was."""


@dataclass(frozen=True)
class Breakdown:
    """Where the decode time goes, seconds: they sum to the whole."""

    verify_s: float
    draft_s: float
    mirror_s: float
    sample_s: float

    @property
    def total_s(self) -> float:
        return self.verify_s + self.draft_s + self.mirror_s + self.sample_s

    def __add__(self, other: Breakdown) -> Breakdown:
        return Breakdown(
            self.verify_s + other.verify_s,
            self.draft_s + other.draft_s,
            self.mirror_s + other.mirror_s,
            self.sample_s + other.sample_s,
        )


NOTHING = Breakdown(0.0, 0.0, 0.0, 0.0)


def price(run: Simulation, prompt: int, timings: Timings, profile: Profile) -> Breakdown:
    """Decode time of one simulated reply after a prompt of ``prompt`` tokens."""
    depth = prompt + run.start - 1
    verify = timings.verify.at(run.length + 1, depth)
    sampled = (run.accepted + 1) * timings.target_sample_s
    draft, mirror = np.zeros(run.steps), np.zeros(run.steps)
    if run.decodes.any() or (timings.draft is not None and RULES[profile].mirrors):
        if timings.draft is None:
            raise InputError("the draft's times are missing")
        single = timings.draft.at(1, depth) + timings.draft_sample_s
        draft = run.decodes * single
        if RULES[profile].mirrors:
            mirror = timings.draft.at(run.length + 1, depth)
        else:
            late = run.catch_up > 0
            mirror[late] = timings.draft.at(run.catch_up[late], depth[late])
    parts = (verify, draft, mirror, sampled)
    return Breakdown(*(float(part.sum()) for part in parts))


@dataclass(frozen=True)
class Forecast:
    """One candidate, predicted. ``runs`` are per prompt, in the same form as live requests.

    ``by_depth``: (drafted, accepted) at each place of a draft, from 1 on; ``spent``: where the
    decode time goes; both over all replies. ``name`` is for people.
    """

    key: CandidateKey
    name: str
    runs: tuple[PromptRun, ...]
    by_depth: tuple[tuple[int, int], ...]
    spent: Breakdown

    @cached_property
    def figures(self) -> Figures:
        """Over all replies, each token with the same weight."""
        return figures(self.runs)


def forecast(
    key: CandidateKey,
    name: str,
    replies: Sequence[tuple[ReplyHead, Simulation]],
    longest: int,
    prices: Timings,
    profile: Profile,
) -> Forecast:
    """Simulated replies with their times; ``longest`` draft of the candidate, 0 without one.

    InputError without a reply, and where the draft's times are missing.
    """
    if not replies:
        raise InputError("no replies to predict from")
    spent, runs, depths = NOTHING, [], np.zeros((2, longest), dtype=np.int64)
    for head, run in replies:
        cost = price(run, head.prompt_tokens, prices, profile)
        prefill_s = prices.prompt_s(head.prompt_tokens, drafts=reads_prompt(run, profile))
        spent = spent + cost
        depths += np.array(run.by_depth(longest))
        runs.append(
            PromptRun(
                id=head.id,
                category=head.category,
                prompt_n=head.prompt_tokens,
                prompt_ms=prefill_s * 1000,
                predicted_n=head.emitted,
                predicted_ms=cost.total_s * 1000,
                wall_ms=(prefill_s + cost.total_s) * 1000,
                draft_n=run.draft_n if longest else None,
                draft_n_accepted=run.draft_n_accepted if longest else None,
                tokens=None,
                text="",
                stop="",
            )
        )
    by_depth = tuple((int(drafted), int(accepted)) for drafted, accepted in depths.T)
    return Forecast(key, name, tuple(runs), by_depth, spent)


def reads_prompt(run: Simulation, profile: Profile) -> bool:
    """Whether the draft reads the prompt at all: one that reads late has to draft first."""
    return not RULES[profile].reads_late or bool(run.decodes.any())


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


def break_even(
    timings: Timings, setting: DraftSettings, profile: Profile, depth: int
) -> float | None:
    """Accepted/drafted at which drafting ``n_max`` tokens every step just pays at ``depth``.

    A cycle that accepts a of L tokens takes T(L) and yields 1 + a; plain decoding yields one in
    T(0): they are equal at a = T(L)/T(0) - 1. Above 1 (all accepted) drafting cannot pay; the
    value is returned as it is. None for n_max 0.
    """
    length = setting.n_max
    if length == 0:
        return None
    one = np.array([1])
    cycle = Simulation(one, one * length, one * 0, one * length, one * 0)
    plain = Simulation(one, one * 0, one * 0, one * 0, one * 0)
    bare = timings.without_draft()
    t_cycle = price(cycle, depth, timings, profile).total_s
    t_plain = price(plain, depth, bare, profile).total_s
    # each accepted token also costs one more sampling
    return (t_cycle - t_plain) / ((t_plain - timings.target_sample_s) * length)
