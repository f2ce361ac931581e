"""Step: what a decode of b tokens costs, on real windows of the trace, at real depths.

Verification is far from flat in b (docs/internals/scoring.md#prices), a mixture of experts pays for
every expert that the batch touches, so real windows are timed and not repeated ids; and cost grows
with the context. Alone on the machine, repeats interleaved over widths, medians.

Batches of several slots are timed the same way: so many tokens of each slot in one batch, of a
stretch of text of its own. One slot is timed in the same context, so that what differs between the
two is the slots alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from cook.engines.base import Engine, ModelArgs
from cook.engines.process.system import group_activity
from cook.engines.worker.loading import head_load, model_load, without_rows
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.graph.step import (
    COMPUTE_BYTES_S,
    READ_BYTES_S,
    Cost,
    Input,
    JsonValue,
    Step,
    Workbench,
    decode,
)
from cook.record.record import TOLERATED_CORES
from cook.scoring.batch_curve import BatchCurve
from cook.steps.live import Timed, Watch
from cook.steps.trace import Trace, TraceStep, read_trace
from cook.steps.work import (
    Phase,
    computed_bytes,
    head_bytes,
    model_bytes,
    model_path,
    read_bytes,
    trunk_bytes,
    wide,
)

R = TypeVar("R")
K = TypeVar("K")

SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of slots: between these the price of a batch is drawn as a line."""
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
"""Where cliffs were seen (4 to 5, 8 to 9, 16 to 17 tokens: kernels change) both sides are timed."""
WINDOWS = 3
REPEATS = 3
STEADY_S = 0.006
"""Where so many repeats are shorter, they only warm up and as many follow as fill this time: a
server decodes on and on, and the first decodes after a pause are dearer (by 3 to 6 % on a model of
a millisecond)."""
MOST_REPEATS = 32
SLOW_S = 0.05
"""A batch that takes as long is timed once a window, a prompt once a pass."""
MOST_ROUNDS = 4
"""At a depth that takes long to read, all windows are timed again, as often as takes no longer than
that reading, at most so many times in all: batches of 0.3 s at 16,384 tokens scatter by a quarter
on a shared machine, and three of each made prices a third off."""
FASTER = 4.0
"""Times that a machine may be as fast as the reference: repeats are planned as on such a one, since
a repeat too many in a plan is better than three too few."""
STEP = 4.0
MOST_POINTS = 5
"""Depths and short prompts are timed at their least and greatest, and between them at most so many
times longer than the one before; but at no more points than these."""
TURNS = (4, 24)
"""A target with and without hidden states is timed in turns: the two differ by 2 to 20 %, and the
pace of a machine by as much from one second to the next. So many times at least and at most, while
it takes less than :data:`TURNS_S`."""
TURNS_S = 30.0
CYCLES, SINGLES, MOST_SWEPT = 9, 4, 1 << 30
"""So many cycles of a draft are timed, with at most so many decodes of one token, and each after at
most so many bytes."""
ROWS_A_STRIDE = 8
"""Rows of logits whose numbers fill the 32 bytes that mainline's tensors begin at multiples of."""
READ_STEP = 1.5
"""The reading of a long text is noted more often, which costs nothing: attention makes its time
bend upwards, so that a line over a factor of 4 lies up to a third too high."""


@dataclass(frozen=True)
class CurveOutcome(Timed):
    """Seconds of one decode [depth][width]; ``sample_s`` of the engine's sampler for one token;
    ``prompt_seconds`` of whole prompts of ``prompt_tokens`` tokens; ``reload_s``: what a draft's
    cycle takes beyond its batches, one by one; ``read_shares``: what a ubatch of a prompt takes
    in the context of each of the step's ``reserved``, over the first."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    sample_s: float
    prompt_tokens: tuple[int, ...]
    prompt_seconds: tuple[float, ...]
    others_cores: float | None
    reload_s: float = 0.0
    read_shares: tuple[float, ...] = ()

    @property
    def batches(self) -> BatchCurve:
        return BatchCurve(self.depths, self.widths, self.seconds)

    def prompts(self, ubatch: int, share: float = 1.0) -> BatchCurve:
        """A whole prompt, by its tokens. It is read in batches of ``ubatch``: beyond whole ones the
        last costs what a prompt of its length does, however short, as where experts are streamed.
        ``share``: one of ``read_shares``, which changes ubatches at any depth by as many seconds.
        """
        timed = BatchCurve((0,), self.prompt_tokens, (self.prompt_seconds,))
        points = dict(zip(self.prompt_tokens, self.prompt_seconds, strict=True))
        short = [(n, s) for n, s in points.items() if n < ubatch]
        for whole in range(ubatch, self.prompt_tokens[-1], ubatch):
            read_s = float(timed.at(whole, 0))
            points[whole] = read_s
            rest = [(n, s) for n, s in short if whole + n < self.prompt_tokens[-1]]
            points |= {whole + n: read_s + s for n, s in rest}
        sizes = sorted(points)
        whole_s = (share - 1) * float(timed.at(min(ubatch, sizes[-1]), 0))
        seconds = (points[n] + _added_s(timed, n, ubatch, whole_s, share - 1) for n in sizes)
        return BatchCurve((0,), tuple(sizes), (tuple(seconds),))


def _added_s(timed: BatchCurve, tokens: int, ubatch: int, whole_s: float, share: float) -> float:
    """What a prompt takes longer than ``timed``: ``whole_s`` for every ubatch before its last, and
    a ``share`` of that. Both are the same at any depth."""
    before, last = divmod(tokens - 1, ubatch)
    return before * whole_s + share * float(timed.at(last + 1, 0))


@dataclass(frozen=True)
class _TimedModel(Step[R]):
    """Batches of ``model`` are timed; ``verifies``: logits for every token, as a target's batch
    has, or else a draft's."""

    engine: Engine
    name: str
    model: Input
    trace: Trace
    args: ModelArgs
    verifies: bool
    widths: tuple[int, ...]

    phase: ClassVar[str] = Phase.TIMES
    timed: ClassVar[bool] = True
    in_worker: ClassVar[bool] = True

    def params(self) -> Mapping[str, JsonValue]:
        return {
            "args": asdict(self.args),
            "verifies": self.verifies,
            "widths": list(self.widths),
            "windows": WINDOWS,
            "repeats": REPEATS,
            "steady_s": STEADY_S,
            "slow_s": SLOW_S,
        }


@dataclass(frozen=True)
class CurveStep(_TimedModel[CurveOutcome]):
    """The curve of ``model``: one slot, and whole prompts."""

    turn: int = 0
    """Which of the passes this is: each is a measurement of its own."""
    head: bool = False
    """``model`` is a head, or holds it: that is timed."""
    target: Input | None = None
    """What a draft verifies with: its weights go through the caches before each cycle."""
    plain: CurveStep | None = None
    """The curve of the same target without a head. This one is of the target as it computes its
    hidden states for a head, at every token: the share that these take is timed and added."""
    rows: tuple[int, ...] = ()
    """The most rows of logits that a batch of each server has, rising; () of an engine without."""

    kind: ClassVar[str] = "curve"
    version: ClassVar[int] = 9
    """2: prompts of the lengths that occur, not of full batches alone. 3: with the parameters and
    the threads of the servers, short batches in the midst of many, and prompts and depths from the
    least that occurs to the greatest. 4: windows go on from one text, long batches once each.
    5: long prompts once a pass. 6: windows more often at depths that take long to read. 7: what a
    head's target adds in turns with it alone; a head samples where it gives logits. 8: what a draft
    has to load again into the caches after each batch of its target. 9: by the rows of logits."""

    @property
    def label(self) -> str:
        what = "verification curve" if self.verifies else "draft times"
        again = f" pass {self.turn + 1}" if self.turn else ""
        return f"{what} {self.name}{again} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        rows = {"rows": list(self.reserved)} if self.reserved else {}
        heads = {"head": True} if self.head else {}
        turns = {"gives_rows": True, "turns": [*TURNS, TURNS_S]} if self.gives_rows else {}
        more = {**rows, **heads, **turns}
        return {**super().params(), "rounds": MOST_ROUNDS, "pass": self.turn, **more}

    @property
    def reserved(self) -> tuple[int, ...]:
        """Of ``rows`` the last of each run of servers whose buffers lie alike; () where all do.

        After the numbers of 1 to 8 rows, or 17 to 24, the rest of mainline's buffers lies across
        the 64 bytes that AVX-512 loads (docs/internals/engines.md#where-buffers-lie). So a width is
        timed in a context like that of the server with the fewest rows for it, prompts in all.
        """
        runs = groupby(self.rows, lambda rows: (rows - 1) // ROWS_A_STRIDE % 2)
        found = tuple(max(run) for _, run in runs)
        return found if len(found) > 1 else ()

    @property
    def gives_rows(self) -> bool:
        """Whether ``model`` is a target that computes its hidden states for a head."""
        return self.plain is not None

    def cost(self) -> Cost | None:
        """Batches of every width at a few depths, and prompts of a few lengths."""
        size = (model_bytes if self.head else trunk_bytes)(self.model)
        if size is None:
            return None
        each, computed = read_bytes(self.model), computed_bytes(self.model)
        if self.head:
            each = computed = head_bytes(self.model)
        lengths = [round(tokens) for tokens in self.trace.prompt_tokens()]
        ubatch = self.args.filled().ubatch or 1
        grid = grid_of(lengths, [n + self.trace.max_tokens for n in lengths], ubatch)
        repeats = repeats_of(each)
        widths = sum(map(wide, self.widths))
        if self.gives_rows:
            times = 2 * TURNS[0] * (1 + REPEATS)
            sizes = _one_and_two_ubatches(ubatch, grid.prompts[-1])
            return Cost(
                read_bytes=widths * times * each,
                decodes=len(self.widths) * times,
                computed_bytes=2 * TURNS[0] * sum(sizes) * computed,
                memory_bytes=size,
            )
        # At a depth that takes long to read, batches are timed again for as long.
        round_s = WINDOWS * repeats * widths * each / READ_BYTES_S
        reading_s = [depth * computed / COMPUTE_BYTES_S for depth in grid.depths if depth > ubatch]
        again = sum(min(MOST_ROUNDS, max(1, int(s / round_s))) - 1 for s in reading_s)
        batches = (len(grid.depths) + again) * WINDOWS * repeats
        # One long text is read, and each short prompt alone.
        short = max((stop for stop in grid.stops if stop <= ubatch), default=0)
        read = float(short + max((stop for stop in grid.stops if stop > ubatch), default=0))
        for length in (n for n in grid.prompts if n <= ubatch):
            slow = length * computed / COMPUTE_BYTES_S / FASTER >= SLOW_S
            read += length * (1 if slow else 1 + WINDOWS * (REPEATS + 1))
        read += max(0, len(self.reserved) - 1) * 2 * TURNS[0] * min(ubatch, grid.prompts[-1])
        args = self.trace.args if isinstance(self.trace, TraceStep) else None
        first = self.verifies and self.turn == 0 and self.args != args
        return Cost(
            loads=(size,) if first else (),
            read_bytes=widths * batches * each + CYCLES * self._swept,
            decodes=len(self.widths) * batches,
            computed_bytes=read * computed,
            memory_bytes=size + self._swept,
        )

    @property
    def _swept(self) -> int:
        """Bytes that go through the caches before a cycle."""
        weights = trunk_bytes(self.target) if self.target is not None else None
        return int(min(MOST_SWEPT, weights or 0))

    def run(self, bench: Workbench) -> CurveOutcome:
        return self.of_file(model_path(bench, self.model), bench)

    def of_file(self, path: Path, bench: Workbench, place: str | None = None) -> CurveOutcome:
        """The curve of the model in ``path``; ``place``: as :meth:`KeptWorkers.loaded` has it."""
        trace = read_trace(bench, self.trace)
        texts = sorted((list(r.prompt) + list(r.tokens) for r in trace), key=len, reverse=True)
        if self.plain is not None:
            (giving, _), *_ = self._contexts(path, trace.header.context)
            return self._with_rows(
                decode(self.plain, bench.artifact(self.plain)), giving, texts, bench
            )
        ends = [head.prompt_tokens + head.tokens for head in trace.heads]
        prompts = [head.prompt_tokens for head in trace.heads]
        contexts = self._contexts(path, trace.header.context)
        load = contexts[0][0]
        with bench.workers.loaded(self.engine, load, place=place) as (worker, _):
            grid = grid_of(prompts, ends, load.ubatch)
            watch = _watch(worker)
            # As common_sampler_sample_speculative of ik; mainline's mirrors give no logits.
            is_ik = self.engine.flavour == Flavour.IK_LLAMA_CPP
            sampled = {"picks_best": self.head and is_ik, "mirrors": self.head and not is_ik}
            times = _Times(worker, texts, self.verifies, load.ubatch, **sampled)
            rows: list[tuple[float, ...]] = []
            reload_s = 0.0
            for stop in grid.stops:
                times.read(stop)
                if stop in grid.depths:
                    rows.append(self._row(stop, times, contexts))
                if stop == grid.depths[0]:
                    singly_s = dict(zip(self.widths, rows[0], strict=True))
                    reload_s = times.reload_s(grid.depths, singly_s, self._swept)
                bench.advance(len(rows) / (len(grid.depths) + 1))
            prompts_s = tuple(times.prompt(size) for size in grid.prompts)
            shares = times.read_shares([load for load, _ in contexts], grid.prompts[-1])
            others = watch.others_cores()
        return CurveOutcome(
            depths=grid.depths,
            widths=self.widths,
            seconds=tuple(rows),
            sample_s=times.sample_s(),
            prompt_tokens=grid.prompts,
            prompt_seconds=prompts_s,
            others_cores=others,
            reload_s=reload_s,
            read_shares=shares,
        )

    def _with_rows(
        self, plain: CurveOutcome, giving: ModelLoad, texts: Sequence[list[int]], bench: Workbench
    ) -> CurveOutcome:
        """``plain``, and the share that hidden states add to batches of few tokens, and to ubatches
        of a prompt. They cost the same at any depth, so both are timed at a text's beginning.

        The last ubatch of a prompt alone has logits, for which mainline lays its buffers out anew,
        and worse than before (docs/internals/engines.md#where-buffers-lie).
        """
        sizes = _one_and_two_ubatches(giving.ubatch, plain.prompt_tokens[-1])
        size = sizes[0]
        batches, prompts = list[float](), list[npt.NDArray[np.float64]]()
        started = time.monotonic()
        with bench.workers.loaded(self.engine, giving) as (worker, _):
            watch = _watch(worker)

            def timed(load: ModelLoad, window: int) -> npt.NDArray[np.float64]:
                worker.load(load)
                times = _Times(worker, texts, True, giving.ubatch)
                found = [times.opening(width, window, all_outputs=True) for width in self.widths]
                for tokens in sizes:  # after a draft was verified, as in a server
                    times.opening(self.widths[-1], window, all_outputs=True)
                    found.append(times.read_once(tokens, window))
                return np.array(found)

            for turn in range(TURNS[1]):
                if turn >= TURNS[0] and time.monotonic() - started >= TURNS_S:
                    break
                loads = (giving, without_rows(giving))
                first, second = (timed(load, turn % WINDOWS) for load in loads[:: (-1) ** turn])
                more = (first / second) ** (-1) ** turn
                batches += more[: -len(sizes)].tolist()
                prompts.append(more[-len(sizes) :])
                bench.advance((turn + 1) / TURNS[1])
            worker.load(giving)
            others = watch.others_cores()
        known = BatchCurve((0,), plain.prompt_tokens, (plain.prompt_seconds,))
        shares = (np.median(prompts, axis=0) - 1).tolist()
        # What two ubatches take longer, less what the second does.
        last, two_s = shares[0], shares[-1] * float(known.at(sizes[-1], 0))
        whole_s = two_s - _added_s(known, sizes[-1], size, 0.0, last)
        read = zip(plain.prompt_tokens, plain.prompt_seconds, strict=True)
        rows = (plain.batches.at(self.widths, depth) * median(batches) for depth in plain.depths)
        return replace(
            plain,
            widths=self.widths,
            seconds=tuple(tuple(row.tolist()) for row in rows),
            prompt_seconds=tuple(s + _added_s(known, n, size, whole_s, last) for n, s in read),
            others_cores=others,
            read_shares=(),
        )

    def _contexts(self, path: Path, context: int) -> list[tuple[ModelLoad, list[int]]]:
        """Contexts, and the widths that are timed in each."""
        beyond = max(self.widths)  # the deepest batch begins at a text's end
        usual = max(self.widths) if self.verifies else 1
        shares: dict[int, list[int]] = {}
        for width in self.widths:
            fewest = next((rows for rows in self.reserved if rows >= width), usual)
            shares.setdefault(fewest, []).append(width)

        def load(outputs: int) -> ModelLoad:
            if self.head:
                return head_load(self.engine, path, self.args, context, depth=beyond)
            model = (self.engine, path, self.args, context)
            return model_load(*model, beyond=beyond, outputs=outputs, gives_rows=self.gives_rows)

        return [(load(outputs), widths) for outputs, widths in shares.items()]

    def _row(
        self, depth: int, times: _Times, contexts: Sequence[tuple[ModelLoad, list[int]]]
    ) -> tuple[float, ...]:
        """Seconds of each width, each in its context; from the first and back to it."""
        seconds: tuple[float, ...] = ()
        for number, (load, widths) in enumerate(contexts):
            if number:
                times.worker.load(load, carry=True)
            seconds += times.row(depth, widths, share=1 / len(contexts))
        if len(contexts) > 1:
            times.worker.load(contexts[0][0], carry=True)
        return seconds


def _one_and_two_ubatches(ubatch: int, longest: int) -> tuple[int, ...]:
    """Tokens of prompts of one ubatch and of two, no longer than ``longest``."""
    return tuple(dict.fromkeys(min(n * ubatch, longest) for n in (1, 2)))


def rows_for(engine: Engine, lengths: Iterable[int]) -> tuple[int, ...]:
    """:attr:`CurveStep.rows` of a target that verifies up to each of ``lengths`` drafted tokens."""
    is_mainline = Flavour(engine.flavour) is Flavour.LLAMA_CPP
    return tuple(sorted({1 + length for length in lengths})) if is_mainline else ()


def repeats_of(weights_bytes: float) -> int:
    """About how many decodes time one batch in a window, of a model that reads so much: see
    :data:`STEADY_S`."""
    once_s = weights_bytes / READ_BYTES_S / FASTER
    if once_s >= SLOW_S:
        return 2
    return 3 + (MOST_REPEATS if once_s < STEADY_S / REPEATS else REPEATS)


@dataclass(frozen=True)
class Grid:
    """Depths at which batches are timed, and lengths of whole prompts, both rising."""

    depths: tuple[int, ...]
    prompts: tuple[int, ...]

    @property
    def stops(self) -> list[int]:
        """Where the reading of one long text halts, to time batches or to note the time."""
        return sorted({*self.depths, *self.prompts})


def grid_of(prompts: Sequence[int], ends: Sequence[int], ubatch: int) -> Grid:
    """From the shortest prompt to the longest, and to the deepest token of a reply.

    What is longer than a ``ubatch`` is rounded to whole ones, as a long prompt is read: the least
    down, the others up; the deepest alone stands as it is. A prompt of one token stands for what
    a cache leaves of one.
    """
    least, deepest = min(prompts), max(*ends, min(prompts) + 1)
    if least > ubatch:
        least = least // ubatch * ubatch

    def whole(tokens: int) -> int:
        return tokens if tokens <= ubatch else min(deepest, -(-tokens // ubatch) * ubatch)

    longest = whole(max(prompts))
    sizes = {1, *spread(min(least, ubatch), min(longest, ubatch))}
    while max(sizes) < longest:
        ahead = int(max(sizes) * READ_STEP) // ubatch * ubatch
        sizes.add(min(longest, max(ahead, (max(sizes) // ubatch + 1) * ubatch)))
    return Grid(
        depths=tuple(sorted({whole(d) for d in spread(least, deepest)})),
        prompts=tuple(sorted(sizes)),
    )


def spread(low: int, high: int) -> list[int]:
    """``low`` and ``high``, and between them what is at most :data:`STEP` times its neighbour."""
    count = min(MOST_POINTS, 1 + math.ceil(math.log(high / low) / math.log(STEP) - 1e-9))
    if count < 2:
        return sorted({low, high})
    return [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]


def widths_for(lengths: Iterable[int]) -> tuple[int, ...]:
    """Widths to time for drafts of up to each of ``lengths`` tokens: a verification holds one more.

    Each of these as it is: 8 tokens at once may cost more than 9 (seen on an AVX-512 processor).
    Between them, for drafts that end early, the usual cliffs.
    """
    full = {n + 1 for n in lengths}
    return tuple(sorted(full | {w for w in WIDTHS if w <= max(full)}))


class _Times:
    """Times batches of one loaded model on windows of real text.

    All windows go on from one long text, the longest of ``texts`` first, that is read once: what
    differs between them is what the batch itself holds. Beyond a ``ubatch``, what that reading
    takes is what a prompt takes. ``picks_best``: the engine's sampler of drafts looks at the
    largest logit alone.
    """

    def __init__(
        self,
        worker: Worker,
        texts: Sequence[list[int]],
        verifies: bool,
        ubatch: int,
        *,
        picks_best: bool = False,
        mirrors: bool = False,
    ) -> None:
        self.worker, self.verifies, self.ubatch = worker, verifies, ubatch
        self.picks_best, self.mirrors = picks_best, mirrors
        self.joined = [token for text in texts for token in text]
        self.samples: list[float] = []
        self.read_s = {0: 0.0}
        self.short = 0
        """Tokens that were read of the long text, up to a ubatch: whole ones start again."""

    def read(self, tokens: int) -> None:
        """Go on reading the long text, to its first ``tokens``."""
        if tokens <= self.ubatch:
            self.worker.read(self._window(tokens, 0), self.short)
            self.short = tokens
            return
        known = max(self.read_s)
        rest_s = self.worker.read(self._window(tokens, 0), known)
        self.read_s[tokens] = self.read_s[known] + rest_s

    def row(self, depth: int, widths: Sequence[int], share: float = 1.0) -> tuple[float, ...]:
        """Median seconds for each width at ``depth``. ``share``: of the time that reading to there
        took, in which windows are timed again."""
        before, deepest = self._window(depth, 0), depth + max(widths)
        texts = [before + self._window(deepest, window)[depth:] for window in range(WINDOWS)]

        def timed(width: int, window: int) -> float:
            return self._batch(texts[window], depth, width)

        reading_s = share * self.read_s.get(depth, 0.0)
        return tuple(_medians(widths, timed, reading_s).values())

    def reload_s(self, depths: Sequence[int], seconds: Mapping[int, float], swept: int) -> float:
        """What a draft's cycle takes longer than its batches, which take ``seconds`` by their width
        one by one, at the least of ``depths``: ``swept`` bytes of its target have gone through the
        caches, and the engine builds another graph where the width changes. 0 of a draft that takes
        long: it lies beyond any cache."""
        single_s, width = seconds[1], min(seconds, key=lambda w: abs(w - 1 - SINGLES))
        if not swept or single_s >= SLOW_S:
            return 0.0
        depth, room = depths[0], depths[-1] + max(seconds) - depths[0] - width
        singles = min(SINGLES, room)
        cycles = self.worker.time_batch(
            self._window(depth + width + singles, 0),
            depth=depth,
            tokens=width,
            repeats=CYCLES,
            all_outputs=False,
            singles=singles,
            sweep_bytes=swept,
        )
        # The first quartile: what stalls a cycle is no cache.
        cycle_s = float(np.quantile(cycles.decode_ns, 0.25)) / 1e9
        return max(0.0, cycle_s - seconds[width] - singles * single_s)

    def prompt(self, tokens: int) -> float:
        """Seconds of a whole prompt: as it was read where it is longer than a ubatch, else the
        median over windows, and once where it takes long: the least of three where other programs
        were at work, of which a second may cost a second."""
        if tokens > self.ubatch:
            return self.read_s[tokens]
        once_s = math.inf
        for window in range(WINDOWS):
            watch = _watch(self.worker)
            once_s = min(once_s, self.read_once(tokens, window))
            if once_s < SLOW_S or (watch.others_cores() or 0.0) <= TOLERATED_CORES:
                break
        if once_s >= SLOW_S:
            return once_s
        texts = [self._window(tokens, window) for window in range(WINDOWS)]
        timings = [
            self.worker.time_batch(text, depth=0, tokens=tokens, repeats=REPEATS, all_outputs=False)
            for text in texts
        ]
        return median(_median_s(timing.decode_ns) for timing in timings)

    def opening(self, tokens: int, window: int, *, all_outputs: bool) -> float:
        """Seconds of one batch at a text's beginning, after it was decoded once unseen."""
        timing = self.worker.time_batch(
            self._window(tokens, window),
            depth=0,
            tokens=tokens,
            repeats=REPEATS if all_outputs else 1,
            all_outputs=all_outputs,
        )
        return _median_s(timing.decode_ns)

    def read_once(self, tokens: int, window: int) -> float:
        """Seconds of a prompt that is read for the first time."""
        return self.worker.read(self._window(tokens, window))

    def read_shares(self, loads: Sequence[ModelLoad], longest: int) -> tuple[float, ...]:
        """What the first ubatch of a prompt takes in each context, over the first; () of one. The
        first is loaded at last."""
        if len(loads) == 1:
            return ()
        shares = [[1.0]]
        for load in loads[1:]:
            seconds = dict[ModelLoad, list[float]]({loads[0]: [], load: []})
            for turn in range(TURNS[0]):
                for one in list(seconds)[:: (-1) ** turn]:
                    self.worker.load(one)
                    self.read_once(1, turn % WINDOWS)
                    seconds[one].append(self.read_once(min(self.ubatch, longest), turn % WINDOWS))
            first, other = seconds.values()
            shares.append([b / a for a, b in zip(first, other, strict=True)])
        self.worker.load(loads[0])
        return tuple(map(median, shares))

    def _batch(self, text: list[int], depth: int, width: int) -> float:
        """Median seconds of one batch; those of its sampling join ``samples``."""
        sample_s = 0.0

        def timed(repeats: int) -> float:
            nonlocal sample_s
            timing = self.worker.time_batch(
                text,
                depth=depth,
                tokens=width,
                repeats=repeats,
                all_outputs=self.verifies,
                sample_k=40 if self.verifies else 1 if self.picks_best else 10,
            )
            sample_s = _median_s(timing.sample_ns)
            return _median_s(timing.decode_ns)

        decode_s = _steady(timed)
        if width == 1 or not self.mirrors:
            self.samples.append(sample_s / (width if self.verifies else 1))
        return decode_s

    def sample_s(self) -> float:
        return float(median(self.samples))

    def _window(self, tokens: int, index: int) -> list[int]:
        """So many tokens of all texts, one after another and around; each index begins elsewhere.

        The first begins with the longest text.
        """
        if 2 * len(self.joined) < tokens:
            raise StepError(
                f"the trace has {len(self.joined)} tokens; timing at its depth needs {tokens}",
                hint="record more or longer replies",
            )
        start = max(0, len(self.joined) - tokens) * index // max(WINDOWS - 1, 1)
        return (self.joined * 2)[start : start + tokens]


def _medians(
    batches: Iterable[K], timed: Callable[[K, int], float], reading_s: float = 0.0
) -> dict[K, float]:
    """Median seconds of each of ``batches``, which ``timed`` takes one of, and a window's number;
    windows outside, so that a drift of the machine falls on all alike. All again, where that takes
    no longer than ``reading_s`` in all: see :data:`MOST_ROUNDS`."""
    found: dict[K, list[float]] = {batch: [] for batch in batches}
    for number in range(MOST_ROUNDS):
        timed_s = sum(map(sum, found.values()))
        if number and timed_s * (number + 1) / number > reading_s:
            break
        for window in range(WINDOWS):
            for batch, seconds in found.items():
                seconds.append(timed(batch, window))
    return {batch: median(seconds) for batch, seconds in found.items()}


def _steady(timed: Callable[[int], float]) -> float:
    """Seconds of a batch that ``timed`` repeats so many times, as it takes in the midst of many:
    with as many repeats as that needs."""
    once_s = timed(1)
    if once_s >= SLOW_S:
        return once_s
    return timed(max(REPEATS, min(MOST_REPEATS, math.ceil(STEADY_S / once_s))))


def _median_s(ns: Sequence[int] | npt.NDArray[np.int64]) -> float:
    return float(np.median(ns)) / 1e9


def _watch(worker: Worker) -> Watch:
    def cpu_s() -> float | None:
        activity = group_activity(worker.pid)
        return activity.cpu_s if activity else None

    return Watch(cpu_s)


@dataclass(frozen=True)
class SlotCurveOutcome(Timed):
    """Seconds of one decode [sequences][depth][width tokens of each sequence]."""

    sequences: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    others_cores: float | None

    @property
    def batches(self) -> dict[int, BatchCurve]:
        """By the number of sequences."""
        return {
            count: BatchCurve(self.depths, self.widths, rows)
            for count, rows in zip(self.sequences, self.seconds, strict=True)
        }


def sequences_for(slots: Iterable[int]) -> tuple[int, ...]:
    """Numbers of sequences to time for servers of so many ``slots`` each."""
    wanted = set(slots)
    return tuple(sorted({s for s in SEQUENCES if s <= max(wanted)} | wanted | {1}))


@dataclass(frozen=True)
class SlotCurveStep(_TimedModel[SlotCurveOutcome]):
    """Batches of several slots; ``widths``: tokens of each.

    ``sequences``: how many slots decode together, rising from 1.
    """

    sequences: tuple[int, ...]
    head: bool = False
    gives_rows: bool = False
    """As those of :class:`CurveStep`."""

    kind: ClassVar[str] = "slot-curve"
    version: ClassVar[int] = 2
    """2: buffers lie alike."""

    @property
    def label(self) -> str:
        what = "verification" if self.verifies else "draft times"
        return f"{what} {self.name} by slots, up to {self.sequences[-1]} ({self.engine.name})"

    def params(self) -> Mapping[str, JsonValue]:
        heads = {n: True for n in ("head", "gives_rows") if getattr(self, n)}
        return {**super().params(), "sequences": list(self.sequences), **heads}

    def cost(self) -> Cost | None:
        """Batches of every width and number of slots at two depths."""
        size = (model_bytes if self.head else trunk_bytes)(self.model)
        if size is None:
            return None
        each = head_bytes(self.model) if self.head else read_bytes(self.model)
        lengths = self.trace.prompt_tokens()
        batches = 2 * WINDOWS * repeats_of(each)
        sizes = [wide(slots * width) for slots in self.sequences for width in self.widths]
        depth = self.sequences[-1] * (min(lengths) + max(lengths) + self.trace.max_tokens)
        return Cost(
            read_bytes=sum(sizes) * batches * each,
            decodes=len(sizes) * batches,
            computed_bytes=depth * computed_bytes(self.model),
            memory_bytes=size,
        )

    def run(self, bench: Workbench) -> SlotCurveOutcome:
        trace = read_trace(bench, self.trace)
        texts = [token for reply in trace for token in (*reply.prompt, *reply.tokens)]
        least = min(head.prompt_tokens for head in trace.heads)
        deepest = max(head.prompt_tokens + head.tokens for head in trace.heads)
        depths = tuple(sorted({least, max(deepest, least + 1)}))
        beyond, slots = max(self.widths), self.sequences[-1]
        place = (self.engine, model_path(bench, self.model), self.args, trace.header.context)
        if self.head:
            load = head_load(*place, depth=beyond, slots=slots)
        else:
            load = model_load(
                *place,
                beyond=beyond,
                outputs=beyond if self.verifies else 1,
                slots=slots,
                gives_rows=self.gives_rows,
            )
        with bench.workers.loaded(self.engine, load) as (worker, _):
            watch = _watch(worker)
            rows = []
            for depth in depths:
                rows.append(
                    _slot_rows(worker, texts, depth, self.sequences, self.widths, self.verifies)
                )
                bench.advance(len(rows) / len(depths))
            others = watch.others_cores()
        return SlotCurveOutcome(
            sequences=self.sequences,
            depths=depths,
            widths=self.widths,
            seconds=tuple(tuple(row[s] for row in rows) for s in self.sequences),
            others_cores=others,
        )


def _slot_rows(
    worker: Worker,
    text: Sequence[int],
    depth: int,
    sequences: Sequence[int],
    widths: Sequence[int],
    verifies: bool,
) -> dict[int, tuple[float, ...]]:
    """Median seconds by the number of slots that decode together, for each width; every slot holds
    its own stretch of ``text``, ``depth`` tokens long."""
    slots, beyond = max(sequences), max(widths)
    if len(text) < beyond:
        raise StepError(
            f"the trace has {len(text)} tokens; timing {beyond} at once needs as many",
            hint="record more or longer replies",
        )

    def stretches(tokens: int, place: int) -> list[list[int]]:
        """So many tokens for each slot, around the text's end, where no other begins."""
        places = slots * (WINDOWS + 1)
        starts = (len(text) * (n * (WINDOWS + 1) + place) // places for n in range(slots))
        return [[text[(at + i) % len(text)] for i in range(tokens)] for at in starts]

    before = stretches(depth, 0)
    after = [stretches(beyond, 1 + window) for window in range(WINDOWS)]

    def timed(batch: tuple[int, int], window: int) -> float:
        count, width = batch
        following = [tokens[:width] for tokens in after[window]]
        # A draft gives logits for the token of each slot, and when it mirrors a verification for
        # the last alone.
        every = verifies or width == 1

        def repeated(repeats: int) -> float:
            times = worker.time_slots(
                before, following, sequences=count, repeats=repeats, all_outputs=every
            )
            return _median_s(times)

        return _steady(repeated)

    found = _medians([(count, width) for count in sequences for width in widths], timed)
    return {count: tuple(found[count, width] for width in widths) for count in sequences}
