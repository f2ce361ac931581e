"""Seconds at one pace of a shared machine, which reference batches tell every few seconds.

What others do on the same host changes the speeds of memory and of processors, by a third, within
seconds and for a minute. A batch follows it by what bounds it, and that is another for every
number of tokens. On one machine the means of 5 s of batches of one token and of five varied by 7 %
each, and together by nothing (correlation 0.04 over 150 s); what drafts took for a token went with
the first (0.93), what verifications of 3 and 9 tokens took with the second (0.8). On another,
batches of 1, 5, 9 and 64 tokens after 16,384 took 33, 24, 14 and 7 % longer at times, for minutes:
brought to one pace by that of five, nine were priced 6 to 11 % too low. So what verifies is taken
at the pace of a batch as wide, and what reads at that of one that reads. A look 7 s away tells
nothing of a batch (of 16,384 tokens of depth: 22 % of scatter as it is, 24 % by that look, 12 % by
one within 3 s): looks are taken *within* what is measured. The engine is stopped (SIGSTOP) for the
time of a look, which is taken out of the engine's seconds again, and what lies between two looks
is taken at their pace. The reference is the target at the depth of the prompts.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from cook.build.layout import Layout
from cook.engines.base import DraftSettings, Engine
from cook.engines.process import keeper
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.loading import model_load
from cook.graph.execute import Executor
from cook.graph.step import Step
from cook.record.prompt_runs import PromptRun
from cook.steps.live import LiveOutcome, LiveStep

if TYPE_CHECKING:
    from cook.engines.worker.messages import DecodeTimes, ModelInfo, ModelLoad
    from cook.engines.worker.worker import Tokens, Worker

T = TypeVar("T")

ALONE = 1
"""Tokens of the reference for what is decoded one at a time: without a draft, or of a draft."""
READS = 64
"""Tokens of the one for what reads a prompt: batches of :data:`WIDE` tokens and more."""
WIDE = 32
LOOK_S = 0.1
"""A batch of a look is repeated to last as long."""
MOST_REPEATS = 32
EVERY_S = 1.0
"""From one look to the next within what lasts longer."""
READ_BY = 0.8
"""Of the least time that a prompt was read in before: until then nothing of it is decoded."""
FRESH_S = 1.0
"""A look that is no older tells the pace of what begins now."""
FIRST_LOOKS = 15
"""Whose median is the pace that all is taken at."""


Seconds = Mapping[int, float]
"""Of reference batches, by their tokens."""


@dataclass(frozen=True)
class Look:
    """Seconds of the references that were asked; when the look ``began`` and ``ended``."""

    began: float
    ended: float
    seconds: Seconds


@dataclass(frozen=True)
class Work:
    """What is timed: by the tokens of a reference, the share of its time that follows that. The
    rest takes as long at every pace."""

    shares: Mapping[int, float]

    def slower(self, before: Sequence[Look], after: Sequence[Look], usual: Seconds) -> float:
        """By which factor it is slower than at the ``usual`` pace between two looks: those
        ``before``, of which the last at a reference tells of it, and those ``after``, of which the
        first does."""
        return 1 + sum(
            share * (mean(_nearest(before, after, tokens)) / usual[tokens] - 1)
            for tokens, share in self.shares.items()
        )


def _nearest(before: Sequence[Look], after: Sequence[Look], tokens: int) -> Iterator[float]:
    for looks in reversed(before), after:
        yield from islice((one.seconds[tokens] for one in looks if tokens in one.seconds), 1)


CLOCK = Work({})
READING = Work({READS: 1.0})


def decoding(alone: float, settings: DraftSettings | None) -> Work:
    """Of which the share ``alone`` is of one token at a time, the rest verifies drafts of full
    length."""
    if settings is None:
        return Work({ALONE: 1.0})
    return Work({ALONE: alone, settings.n_max + 1: 1 - alone})


def seconds_between(
    looks: Sequence[Look], began: float, ended: float, work: Work, usual: Seconds
) -> float:
    """Seconds of ``work`` from ``began`` to ``ended`` without those of ``looks``.

    Between two looks at a reference the pace is their mean; before the first and after the last it
    is theirs.
    """
    starts = [-math.inf, *(look.ended for look in looks)]
    ends = [*(look.began for look in looks), math.inf]
    total = 0.0
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        seconds = min(end, ended) - max(start, began)
        if seconds > 0:
            total += seconds / work.slower(looks[:place], looks[place:], usual)
    return total


def retimed(
    run: PromptRun,
    looks: Sequence[Look],
    answered: float,
    reading: Work,
    decoding: Work,
    usual: Seconds,
) -> PromptRun:
    """``run``, whose answer came at ``answered``, with the seconds of its ``reading`` and its
    ``decoding`` as these are."""
    decoded_from = answered - run.predicted_ms / 1000
    late_till = decoded_from + (run.late_reading_ms or 0.0) / 1000

    def ms(began: float, ended: float, work: Work) -> float:
        return 1000 * seconds_between(looks, began, ended, work, usual)

    late_ms = ms(decoded_from, late_till, reading)
    predicted_ms = late_ms + ms(late_till, answered, decoding)
    return replace(
        run,
        wall_ms=predicted_ms + ms(answered - run.wall_ms / 1000, decoded_from, reading),
        prompt_ms=ms(decoded_from - run.prompt_ms / 1000, decoded_from, reading),
        predicted_ms=predicted_ms,
        late_reading_ms=late_ms if run.late_reading_ms is not None else None,
    )


@dataclass(frozen=True)
class Timed:
    """A live step: its ``looks``, and when each of its requests was ``answered``."""

    looks: tuple[Look, ...]
    answered: tuple[float, ...]


@dataclass(frozen=True)
class Watch:
    """The references of ``widths`` are looked at together, ``resting`` times as long as the last
    look took between two, so that what is measured goes on; the first time after ``quiet_s``.

    After 16,384 tokens a look at a batch that reads takes two seconds, at those that decode a third
    of one. A reply of 25 s had 4 looks at all of them, on a machine that took half as long again
    from one look to the next, and was 13 to 25 % slower than predicted in four cases of nine.
    """

    widths: frozenset[int]
    resting: float
    quiet_s: float = 0.0


@dataclass
class Pace:
    """``worker`` holds the reference model, whose ``text`` is read up to its last few tokens.

    ``widths``: tokens of the references, rising; ``usual``: their seconds at the pace that all is
    taken at; ``timed``: the live steps that :meth:`run` ran, by key.
    Both are in ``file``, where there is one, so that a study goes on where it was.
    """

    worker: Worker
    text: list[int]
    widths: tuple[int, ...]
    file: Path | None = None
    timed: dict[str, Timed] = field(default_factory=dict)
    usual: Seconds = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._looks: list[Look] = []
        self._answered: list[float] = []
        self._read_s: dict[tuple[str, ...], float] = {}
        self._repeats: dict[int, int] = {}
        if self.file is not None and self.file.exists():
            known = json.loads(self.file.read_text(encoding="utf-8"))
            self.usual = _by_tokens(known["usual"])
            self.timed = {
                key: Timed(
                    tuple(Look(began, ended, _by_tokens(of)) for began, ended, of in looks),
                    tuple(answered),
                )
                for key, (looks, answered) in known["timed"].items()
            }
        else:
            for _ in range(FIRST_LOOKS):
                self.look(self.widths)
            self.usual = {
                tokens: median(look.seconds[tokens] for look in self._looks)
                for tokens in self.widths
            }
            self._keep()  # before anything is timed at this pace

    def take(self, executor: Executor) -> None:
        """Time all that ``executor`` runs from now on; nothing ran yet."""
        executor.advancing = lambda *_: self._answered.append(time.monotonic())
        executor.workers = PacedWorkers(executor.logs / "workers", self)

    def run(self, executor: Executor, steps: Iterable[Step[Any]]) -> None:
        """Each of ``steps`` alone: requests with looks within, workers' timings at one pace."""
        for step in steps:
            if not isinstance(step, LiveStep):
                executor.run([step])
                continue
            if step.key in self.timed:
                executor.run([step])
            else:
                untold = executor.store.find(step.kind, step.key)
                if untold is not None:  # ended after it was stored and before its looks were
                    executor.store.remove(untold)
                self._looks, self._answered = [], []
                with self.looking(*self._watches(step)):
                    executor.run([step])
                if step.key in executor.outcomes.failures:
                    continue
                self.timed[step.key] = Timed(tuple(self._looks), tuple(self._answered))
                self._keep()
            self._learn_reading(step, executor)

    def _watches(self, step: LiveStep) -> tuple[Watch, Watch]:
        """What reads is averaged over its minutes, what decodes is short and the judged. The widths
        of decoding wait until it may have begun, where the reading of this prompt is known."""
        asked = tuple(prompt.id for prompt in step.prompts)
        quiet_s = READ_BY * self._read_s.get(asked, 0.0)
        widths = frozenset(decoding(0.5, step.settings).shares)
        return Watch(frozenset({READS}), 20.0), Watch(widths, 2.5, quiet_s)

    def _learn_reading(self, step: LiveStep, executor: Executor) -> None:
        """Of a single prompt: before any of several is read, others were decoded."""
        outcome = executor.outcomes.result(step)
        if outcome is None or len(step.prompts) > 1:
            return
        (run,) = self.runs(step, outcome, None)
        asked = (step.prompts[0].id,)
        seconds = run.prompt_ms / 1000
        self._read_s[asked] = min(seconds, self._read_s.get(asked, seconds))

    def runs(
        self, step: LiveStep, outcome: LiveOutcome, alone: float | None
    ) -> tuple[PromptRun, ...]:
        """The requests of a live step, without the looks: at one pace, of whose decoding time the
        share ``alone`` is of one token at a time, or by the clock (None)."""
        timed, works = self.timed[step.key], (CLOCK, CLOCK)
        if alone is not None:
            works = READING, decoding(alone, step.settings)
        asked = zip(outcome.runs, timed.answered, strict=True)
        return tuple(retimed(run, timed.looks, at, *works, self.usual) for run, at in asked)

    def of_call(self, call: Callable[[], T], tokens: int) -> tuple[T, float]:
        """What a call of a worker gives, with batches of so many ``tokens``, and the factor that
        takes its seconds to one pace, the looks taken out of them."""
        width = self.like(tokens)
        last = self._looks[-1] if self._looks else None
        fresh = last is not None and time.monotonic() - last.ended <= FRESH_S
        if last is None or not fresh or width not in last.seconds:
            self._looks = []
            self.look([width])
        began = time.monotonic()
        with self.looking(Watch(frozenset({width}), 5.0)):
            got = call()
            ended = time.monotonic()
        work = Work({width: 1.0})
        seconds = seconds_between(self._looks, began, ended, work, self.usual)
        return got, seconds / (ended - began)

    @contextmanager
    def looking(self, *watches: Watch) -> Iterator[None]:
        """Look at the references of ``watches`` every few seconds within the block, and after it
        where it was as long; all engines but the reference's stand still meanwhile. A look that an
        engine was started in is dropped: one that ran beside a server's loading took five times as
        long."""
        over, began = threading.Event(), time.monotonic()
        widths = frozenset[int]().union(*(watch.widths for watch in watches))

        def look_on() -> None:
            due = {watch: began + max(EVERY_S, watch.quiet_s) for watch in watches}
            while True:
                watch = min(due, key=lambda one: due[one])
                if over.wait(max(0.0, due[watch] - time.monotonic())):
                    return
                engines = _children() - {self.worker.pid}
                with _standing(engines):
                    look = self.look(watch.widths)
                if _children() - {self.worker.pid} - engines:
                    self._looks.remove(look)  # it ran beside an engine that was loading
                rest_s = max(EVERY_S, watch.resting * (look.ended - look.began))
                due[watch] = time.monotonic() + rest_s

        if not self._looks:
            self.look(widths)
        looking_on = threading.Thread(target=look_on, name="pace", daemon=True)
        looking_on.start()
        try:
            yield
        finally:
            over.set()
            looking_on.join()
        if time.monotonic() - began > FRESH_S:
            self.look(widths)

    def look(self, widths: Iterable[int]) -> Look:
        """Time the references of so many tokens."""
        began = time.monotonic()
        seconds = {tokens: self._batch(tokens) for tokens in widths}
        look = Look(began, time.monotonic(), seconds)
        self._looks.append(look)
        return look

    def like(self, tokens: int) -> int:
        """Tokens of the reference that is the most like a batch of so many."""
        if tokens >= WIDE:
            return READS
        return min((w for w in self.widths if w < WIDE), key=lambda w: abs(math.log(w / tokens)))

    def _batch(self, width: int) -> float:
        depth = len(self.text) - READS

        def timed(repeats: int) -> float:
            timing = self.worker.time_batch(
                self.text, depth=depth, tokens=width, repeats=repeats, all_outputs=width != READS
            )
            return float(median(timing.decode_ns.tolist()) / 1e9)

        if width not in self._repeats:
            self._repeats[width] = max(1, min(MOST_REPEATS, math.ceil(LOOK_S / timed(1))))
        return timed(self._repeats[width])

    def _keep(self) -> None:
        if self.file is None:
            return
        part = self.file.with_suffix(".part")
        timed = {
            key: ([(look.began, look.ended, look.seconds) for look in one.looks], one.answered)
            for key, one in self.timed.items()
        }
        part.write_text(json.dumps({"usual": self.usual, "timed": timed}))
        part.rename(self.file)


class PacedWorkers(KeptWorkers):
    """Workers whose timings are at one ``pace``."""

    def __init__(self, log_dir: Path, pace: Pace) -> None:
        super().__init__(log_dir)
        self._pace = pace

    @contextmanager
    def loaded(
        self,
        engine: Engine,
        load: ModelLoad,
        timeout_s: float = 3600.0,
        *,
        place: str | None = None,
    ) -> Iterator[tuple[Worker, ModelInfo]]:
        """As :meth:`KeptWorkers.loaded`."""
        with super().loaded(engine, load, timeout_s, place=place) as (worker, info):
            paced: Any = PacedWorker(worker, self._pace)
            yield paced, info


class PacedWorker:
    """``worker``, whose timings are at one ``pace``."""

    def __init__(self, worker: Worker, pace: Pace) -> None:
        self._worker, self._pace = worker, pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def read(self, text: Tokens, known: int = 0) -> float:
        """As :meth:`Worker.read`."""
        seconds, factor = self._pace.of_call(
            lambda: self._worker.read(text, known), len(text) - known
        )
        return seconds * factor

    def time_batch(self, text: Tokens, *, tokens: int, **what: Any) -> DecodeTimes:
        """As :meth:`Worker.time_batch`."""
        times, factor = self._pace.of_call(
            lambda: self._worker.time_batch(text, tokens=tokens, **what), tokens
        )
        paced = (times.decode_ns * factor).round().astype(times.decode_ns.dtype)
        return replace(times, decode_ns=paced)


def _children() -> set[int]:
    """Processes that this one started, without their keeper."""
    found, own = set(), str(os.getpid()).encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                stat = (entry / "stat").read_bytes()
                # The command's name may hold spaces and parentheses.
                mine = stat[stat.rfind(b")") + 2 :].split()[1] == own
                if mine and keeper.__file__.encode() not in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


@contextmanager
def _standing(pids: Iterable[int]) -> Iterator[None]:
    """Processes ``pids`` stand still within the block."""
    stopped = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def reference(layout: Layout, depth: int, file: Path | None = None) -> Iterator[Pace]:
    """The pace by the target of ``layout`` at ``depth`` tokens, in a worker of its own; with what
    ``file`` has of it."""
    assert layout.baseline is not None, "asked for"
    assert layout.target is not None, "asked for"
    assert layout.forecast is not None, "asked for"
    verifying = {settings.n_max + 1 for settings in layout.forecast.settings}
    widths = tuple(sorted({ALONE, *verifying, READS}))
    args = layout.baseline.rounds[0].target_args
    with TemporaryDirectory(prefix="cook-bench-") as logs, KeptWorkers(Path(logs)) as workers:
        load = model_load(
            layout.engine, layout.target.path, args, depth, beyond=READS, outputs=max(verifying)
        )
        with workers.loaded(layout.engine, load) as (worker, _):
            yield Pace(worker, list(range(1, 1 + depth + READS)), widths, file)


def _by_tokens(seconds: Mapping[str, float]) -> Seconds:
    """As JSON has it, whose keys are texts."""
    return {int(tokens): value for tokens, value in seconds.items()}
