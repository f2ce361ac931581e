"""Predicted speed of a draft: simulated cycles priced with measured times.

decode time = sum over steps [ t_v(L+1) + draft cost + sampling ], where the draft cost is,
for mainline, its single decodes plus one batch of L+1 that mirrors the verification; for engines
that keep the draft's cache, its single decodes plus whatever it has to catch up with. How long a
batch takes, by its width and the context depth, is read between measured points. Speed is
(tokens - 1) / time: the first token comes with the prompt. The reading of prompts, by both models,
is no part of it, wherever an engine counts it (:func:`counted_alike`). Totals over replies are
sums of tokens over sums of times, that is token-weighted harmonic means
(docs/internals/scoring.md#prices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.record.prompt_runs import PromptRun
from cook.scoring.simulate import RULES, Positions, Profile, Simulation, simulate

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
        """Seconds that a request takes beside its decoding, all models; 0 if not measured.

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
class PricedReplies:
    """A draft under one setting, over all replies.

    ``tokens`` is the weighted number of tokens after each reply's first; ``decode_tokens_per_s``
    their speed; ``end_to_end_tokens_per_s`` that of the same tokens with the prefill of both
    models, each once. ``categories``: decode speed by category. ``per_reply_s``: decode seconds of
    each reply, ``prompt_s`` the seconds of each beside them.
    """

    setting: DraftSettings
    draft_n: int
    draft_n_accepted: int
    cycles: int
    steps: int
    tokens: float
    decode_tokens_per_s: float
    end_to_end_tokens_per_s: float
    breakdown: Breakdown
    categories: Mapping[str, float]
    per_reply_s: tuple[float, ...]
    prompt_s: tuple[float, ...]

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted / cycles: tokens a verification yields."""
        return 1.0 + self.draft_n_accepted / self.cycles if self.cycles else None


def predict(
    replies: Sequence[Positions],
    setting: DraftSettings,
    timings: Timings,
    profile: Profile,
    *,
    categories: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> PricedReplies:
    """Predicted speed of one draft under one setting. ``setting.n_max`` 0: no draft loaded, and
    of ``timings`` that have one the target's own are taken."""
    if not replies:
        raise InputError("no replies to predict from")
    names = list(categories or ["all"] * len(replies))
    shares = list(weights or [1.0] * len(replies))
    if len(names) != len(replies) or len(shares) != len(replies):
        raise InputError("categories and weights must have one entry a reply")
    alone = setting.n_max == 0 and timings.draft is not None
    prices = timings.without_draft() if alone else timings
    simulated = [
        SimulatedReply(simulate(reply, setting, profile), reply.prompt, reply.reply)
        for reply in replies
    ]
    return priced(simulated, setting, prices, profile, names, shares)


@dataclass(frozen=True)
class SimulatedReply:
    """``run`` of a reply of ``reply`` tokens after a prompt of ``prompt`` tokens."""

    run: Simulation
    prompt: int
    reply: int


def priced(
    replies: Sequence[SimulatedReply],
    setting: DraftSettings,
    prices: Timings,
    profile: Profile,
    categories: Sequence[str],
    weights: Sequence[float],
) -> PricedReplies:
    """What simulated replies of one ``setting`` cost, in all; one category and weight a reply."""
    total, tokens, whole_s = NOTHING, 0.0, 0.0
    by_category: dict[str, list[float]] = {}
    runs, seconds, prompts = [], [], []
    for reply, name, share in zip(replies, categories, weights, strict=True):
        run = reply.run
        cost = price(run, reply.prompt, prices, profile)
        runs.append(run)
        seconds.append(cost.total_s)
        prompts.append(prices.prompt_s(reply.prompt, drafts=reads_prompt(run, profile)))
        after_first = share * (reply.reply - 1)
        total = total + _scaled(cost, share)
        tokens += after_first
        whole_s += share * (prompts[-1] + seconds[-1])
        sums = by_category.setdefault(name, [0.0, 0.0])
        sums[0] += after_first
        sums[1] += share * cost.total_s
    return PricedReplies(
        setting=setting,
        draft_n=sum(r.draft_n for r in runs),
        draft_n_accepted=sum(r.draft_n_accepted for r in runs),
        cycles=sum(r.cycles for r in runs),
        steps=sum(r.steps for r in runs),
        tokens=tokens,
        decode_tokens_per_s=tokens / total.total_s if total.total_s > 0 else 0.0,
        end_to_end_tokens_per_s=tokens / whole_s if whole_s > 0 else 0.0,
        breakdown=total,
        categories={n: t / s for n, (t, s) in by_category.items() if s > 0},
        per_reply_s=tuple(seconds),
        prompt_s=tuple(prompts),
    )


def reads_prompt(run: Simulation, profile: Profile) -> bool:
    """Whether the draft reads the prompt at all: one that reads late has to draft first."""
    return not RULES[profile].reads_late or bool(run.decodes.any())


def counted_alike(live: PromptRun, timings: Timings | None, profile: Profile) -> PromptRun:
    """``live`` with decoding and prompt apart as on every engine: the draft's reading of the prompt
    is taken out of the decoding where the engine counts it there.

    As long as the answer tells, or else as was timed (where neither does, as it is): a draft that
    was timed apart read 4,096 tokens in up to a fifth less time than beside its target, which is no
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


def _scaled(cost: Breakdown, share: float) -> Breakdown:
    return Breakdown(
        cost.verify_s * share,
        cost.draft_s * share,
        cost.mirror_s * share,
        cost.sample_s * share,
    )


def best(predictions: Sequence[PricedReplies]) -> PricedReplies:
    """The fastest; among equals the one that drafts least."""
    if not predictions:
        raise InputError("nothing was predicted")
    return max(predictions, key=lambda p: (p.decode_tokens_per_s, -p.draft_n))


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
