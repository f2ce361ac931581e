"""Predicted speed of a draft: simulated cycles priced with measured times.

decode time = sum over steps [ t_v(L+1) + draft cost + sampling + t_0 ], where the draft cost is,
for mainline, its single decodes plus one batch of L+1 that mirrors the verification; for engines
that keep the draft's cache, its single decodes plus whatever it has to catch up with. How long a
batch takes, by its width and the context depth, is read between measured points. Speed is
(tokens - 1) / time: the first token comes with the prompt. The reading of prompts, by both models,
is no part of it, wherever an engine counts it (:func:`counted_alike`). Totals over replies are
sums of tokens over sums of times, that is token-weighted harmonic means
(docs/internals/scoring.md#prices).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

import numpy as np
import numpy.typing as npt

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.formats.arrays import Floats
from cook.record.measured import Overheads
from cook.record.prompt_runs import PromptRun
from cook.scoring.noise import LogSpread
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

    What live runs take beyond these, or less (:func:`fit_overheads`): the share ``slower`` of all
    of them, ``overhead_s`` a step (t_0), ``decode_overhead_s`` a single decode of the draft,
    ``request_s`` a request.
    """

    verify: BatchCurve
    draft: BatchCurve | None = None
    target_sample_s: float = 0.0
    draft_sample_s: float = 0.0
    overhead_s: float = 0.0
    decode_overhead_s: float = 0.0
    target_prefill: BatchCurve | None = None
    draft_prefill: BatchCurve | None = None
    request_s: float = 0.0
    slower: float = 0.0

    def prompt_s(self, tokens: int, *, drafts: bool = True) -> float:
        """Seconds that a request takes beside its decoding, all models; 0 if not measured.

        ``drafts``: whether the draft reads the prompt.
        """
        timed = 0.0 if self.target_prefill is None else float(self.target_prefill.at(tokens, 0))
        timed += self.draft_prompt_s(tokens) if drafts else 0.0
        return timed + float(_bounded(self.request_s + self.slower * timed, timed))

    def draft_prompt_s(self, tokens: int) -> float:
        """Seconds in which the draft reads a prompt; 0 if not measured."""
        return 0.0 if self.draft_prefill is None else float(self.draft_prefill.at(tokens, 0))

    def without_draft(self) -> Timings:
        """The target alone, as timed: what a server with a draft takes beyond it is not its own."""
        return Timings(self.verify, None, self.target_sample_s, target_prefill=self.target_prefill)


MOST_TAKEN_OFF = 0.9
"""Share of what was timed that an overhead below zero may take off: what is left stays positive."""


def _bounded(overhead_s: npt.ArrayLike, timed_s: npt.ArrayLike) -> Floats:
    """``overhead_s`` beyond ``timed_s``; below zero where the timings are too dear."""
    most = MOST_TAKEN_OFF * np.asarray(timed_s, float)
    return np.asarray(np.maximum(np.asarray(overhead_s, float), -most))


def step_overheads(length: npt.ArrayLike, timed_s: npt.ArrayLike, timings: Timings) -> Floats:
    """What steps of ``length`` single decodes of the draft take beyond ``timed_s``, each."""
    server_s = timings.overhead_s + np.asarray(length, float) * timings.decode_overhead_s
    return _bounded(server_s + timings.slower * np.asarray(timed_s, float), timed_s)


@dataclass(frozen=True)
class Breakdown:
    """Where the decode time goes, seconds: they sum to the whole."""

    verify_s: float
    draft_s: float
    mirror_s: float
    sample_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        return self.verify_s + self.draft_s + self.mirror_s + self.sample_s + self.overhead_s

    def __add__(self, other: Breakdown) -> Breakdown:
        return Breakdown(
            self.verify_s + other.verify_s,
            self.draft_s + other.draft_s,
            self.mirror_s + other.mirror_s,
            self.sample_s + other.sample_s,
            self.overhead_s + other.overhead_s,
        )


NOTHING = Breakdown(0.0, 0.0, 0.0, 0.0, 0.0)


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
    overhead = step_overheads(run.decodes, sum(parts), timings)
    return Breakdown(*(float(part.sum()) for part in (*parts, overhead)))


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
        cost.overhead_s * share,
    )


def best(predictions: Sequence[PricedReplies]) -> PricedReplies:
    """The fastest; among equals the one that drafts least."""
    if not predictions:
        raise InputError("nothing was predicted")
    return max(predictions, key=lambda p: (p.decode_tokens_per_s, -p.draft_n))


def break_even(
    timings: Timings, setting: DraftSettings, profile: Profile, depth: int
) -> float | None:
    """Accepted/drafted at which drafting ``n_max`` tokens every step just pays at ``depth``, by
    the timings alone.

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
    t_cycle = price(cycle, depth, _timed(timings), profile).total_s
    t_plain = price(plain, depth, bare, profile).total_s
    # each accepted token also costs one more sampling
    return (t_cycle - t_plain) / ((t_plain - timings.target_sample_s) * length)


@dataclass(frozen=True)
class Lived:
    """A reply that also ran live: as simulated, after ``prompt`` tokens, in ``live_s`` seconds."""

    run: Simulation
    prompt: int
    live_s: float


SLOWER = 0.1
"""By such a share, give or take, a machine is faster or slower when servers run than it was when
their steps were timed: all of a step alike, that of a large draft as that of a small one."""
SERVER_S, SERVER = 0.0005, 0.1
"""What a server adds to a step, or saves: so many seconds and such a share of what was timed, give
or take."""
DECODE_S, DECODE = 0.0001, 0.1
"""The same of a single decode of the draft."""


def fit_overheads(
    plain: Sequence[Lived],
    drafted: Sequence[Sequence[Lived]],
    alone: Timings,
    timings: Timings,
    profile: Profile,
    noise: LogSpread,
) -> Overheads:
    """What live steps take beyond those priced, nothing told of requests.

    From live replies without a draft, priced by ``alone``, and of each of several draft lengths,
    far apart (2 and 8, say), priced by ``timings``.

    All replies of a run are off together, by a share of about ``noise``: its server's start, and
    what the machine did meanwhile. So a run counts by the seconds of all its replies, and what runs
    cannot tell for noise is not made up: least squares with overheads as they are expected, 0 give
    or take, as further observations (ridge regression). Without that 3 and 6 tokens, 2 and 10 %
    slower than priced, made a length of 1 token 28 % too fast; and without what all have in common
    the noise of one draft's runs was put into seconds, which are too many for a smaller one.
    """
    told = [(plain, alone), *((run, timings) for run in drafted)]
    told = [(run, prices) for run, prices in told if run]
    if not told:
        raise InputError("no reply ran live")
    parts, rest = [], []
    for lived, prices in told:
        whole_s = sum(one.live_s for one in lived)
        unpriced_s = sum(_unpriced(lived, prices, profile))
        steps, drafts = sum(one.run.steps for one in lived), prices is timings
        decodes = float(sum(one.run.decodes.sum() for one in lived))
        row = [whole_s - unpriced_s, steps * (not drafts), steps * drafts, decodes]
        parts.append(np.array(row, float) / whole_s)
        rest.append(unpriced_s / whole_s)
    priced_s, drafted_s = _priced(max((run for run, _ in told), key=_length), timings)
    server_s = math.hypot(SERVER_S, SERVER * priced_s)
    usual = np.array([SLOWER, server_s, server_s, math.hypot(DECODE_S, DECODE * drafted_s)])
    found = _expected(np.array(parts), np.array(rest), usual, noise).tolist()
    slower, plain_s, step_s, decode_s = found
    return Overheads(plain_s, step_s, decode_s, slower=slower)


LOUDEST, LARGEST = 0.5, 10.0
"""The most noise that is thought of, a share; the most times that overheads are larger than usual.
"""


def _expected(parts: Floats, rest: Floats, usual: Floats, noise: LogSpread) -> Floats:
    """What x is expected to be, of ``parts`` @ x + noise = ``rest`` and x = 0 give or take
    ``usual``.

    Runs that no usual overheads bring together were noisier than was thought, or the overheads are
    larger: whatever of both makes ``noise``, as it is known, and ``rest`` the likeliest (the
    evidence of the data, MacKay 1992). The noise is at least what was thought.
    """
    one, alike = np.eye(len(rest)), parts * usual**2 @ parts.T

    def unlikely(tried: tuple[float, float]) -> float:
        sd, times = tried
        covariance = times**2 * alike + sd**2 * one
        surprise = rest @ np.linalg.solve(covariance, rest) + np.linalg.slogdet(covariance)[1]
        known = noise.freedom * ((noise.sd / sd) ** 2 + 2 * math.log(sd / noise.sd))
        return float(surprise + known)

    noises = np.geomspace(noise.sd, max(noise.sd, LOUDEST), 40).tolist()
    sd, times = min(product(noises, np.geomspace(1, LARGEST, 12).tolist()), key=unlikely)
    covariance = times**2 * alike + sd**2 * one
    return np.asarray((times * usual) ** 2 * (parts.T @ np.linalg.solve(covariance, rest)))


def _length(lived: Sequence[Lived]) -> float:
    return max((float(one.run.length.max()) for one in lived), default=0.0)


def _priced(lived: Sequence[Lived], timings: Timings) -> tuple[float, float]:
    """Seconds of a step that drafts nothing, and what a drafted token adds, in ``lived``."""
    depth, length = fmean(one.prompt for one in lived), max(_length(lived), 1.0)
    alone, wide = (float(timings.verify.at(width, depth)) for width in (1, 1 + length))
    drafted = float(timings.draft.at(1, depth)) if timings.draft is not None else 0.0
    return alone, drafted + max(wide - alone, 0.0) / length


def _unpriced(lived: Sequence[Lived], timings: Timings, profile: Profile) -> list[float]:
    """Live minus priced seconds of each reply, overheads left out of the price."""
    if not lived:
        raise InputError("no reply ran live")
    timed = _timed(timings)
    return [one.live_s - price(one.run, one.prompt, timed, profile).total_s for one in lived]


def _timed(timings: Timings) -> Timings:
    """``timings`` without what was fitted to live runs."""
    return replace(timings, overhead_s=0.0, decode_overhead_s=0.0, request_s=0.0, slower=0.0)
