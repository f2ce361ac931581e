"""Seconds at one pace of a shared machine, which three reference batches tell every few seconds.

What others do on the same host changes the speeds of memory and of processors, by a third, within
seconds and for a minute, and each by itself: over 150 s the means of 5 s of a batch of one token
(bound by memory) and of five (bound by processors) of one target varied by 7 % each, and together
by nothing (correlation 0.04). What drafts took for a token went with the first alone (0.93), what
verifications of 3 and 9 tokens took with the second alone (0.8): so either is taken by its own.
What reads a prompt follows the second as it may: where that took 10 % longer, readings took 4 %
longer on one machine (104 of 4,096 and 16,384 tokens) and 11 % on another (18 of 4,096), so there
is a third, which reads. A look 7 s away tells nothing of a batch (of 16,384 tokens of depth: 22 %
of scatter as it is, 24 % by that look, 12 % by one within 3 s): looks are taken *within* what is
measured. The engine is stopped (SIGSTOP) for the time of a look, which is taken out of the engine's
seconds again, and what lies between two looks is taken at their pace. The reference is the target
at the depth of the prompts.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from cook.build.layout import Layout
from cook.engines.base import Engine
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

MEMORY, PROCESSOR, READING_TOKENS = 1, 5, 64
"""Tokens of the batches that are bound by these, and of one that reads."""
NARROW = 2
"""Batches of more tokens are bound by processors."""
WIDE = 32
"""Those of so many read a prompt."""
LOOK_S = 0.1
"""A batch of a look is repeated to last as long."""
MOST_REPEATS = 32
EVERY_S = 2.0
"""From one look to the next within what lasts longer,"""
MOST_LOOKING = 5
"""but so many times as long as the last look took, so that it goes on: after 16,384 tokens a look
takes most of a second."""
FRESH_S = 1.0
"""A look that is no older tells the pace of what begins now."""
FIRST_LOOKS = 15
"""Whose median is the pace that all is taken at."""


@dataclass(frozen=True)
class Look:
    """Seconds of the references bound by ``memory`` and by the ``processor``, and of the one that
    reads, None where it was not asked; when the look ``began`` and ``ended``."""

    began: float
    ended: float
    memory: float | None
    processor: float | None
    reading: float | None

    def tells(self, work: Work) -> bool:
        """Whether it has all that ``work`` is bound by."""
        every = zip(self.seconds, work.shares, strict=True)
        return all(seconds is not None for seconds, share in every if share)

    @property
    def seconds(self) -> tuple[float | None, float | None, float | None]:
        return self.memory, self.processor, self.reading


Usual = tuple[float, float, float]
"""Seconds that the references take at the pace that all is taken at, in the order of a look's."""


@dataclass(frozen=True)
class Work:
    """What is timed: shares of its time that are bound by ``memory`` and by the ``processor``, and
    that are ``reading``. The rest takes as long at every pace."""

    memory: float
    processor: float
    reading: float = 0.0

    @property
    def shares(self) -> Usual:
        return self.memory, self.processor, self.reading

    def slower(self, looks: Sequence[Look], usual: Usual) -> float:
        """By which factor it is slower than usual at these, which tell it."""
        factor = 1.0
        for place, share in enumerate(self.shares):
            if share:
                seconds = mean(s for look in looks if (s := look.seconds[place]) is not None)
                factor += share * (seconds / usual[place] - 1)
        return factor


CLOCK = Work(0.0, 0.0)
READING = Work(0.0, 0.0, 1.0)
DECODING = Work(1.0, 1.0)
"""Some decoding: which of the two bounds it is known later."""
ANY = Work(1.0, 1.0, 1.0)
"""What may be bound by each."""


def seconds_between(
    looks: Sequence[Look], began: float, ended: float, work: Work, usual: Usual
) -> float:
    """Seconds of ``work`` from ``began`` to ``ended`` without those of ``looks``.

    Between two looks the pace is their mean; before the first and after the last it is theirs.
    """
    starts = [-math.inf, *(look.ended for look in looks)]
    ends = [*(look.began for look in looks), math.inf]
    around = [looks[0], *looks], [*looks, looks[-1]]
    total = 0.0
    for start, end, before, after in zip(starts, ends, *around, strict=True):
        seconds = min(end, ended) - max(start, began)
        if seconds > 0:
            total += seconds / work.slower((before, after), usual)
    return total


def retimed(
    run: PromptRun,
    looks: Sequence[Look],
    answered: float,
    reading: Work,
    decoding: Work,
    usual: Usual,
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


@dataclass
class Pace:
    """``worker`` holds the reference model, whose ``text`` is read up to its last few tokens.

    ``usual``: seconds of the references; ``timed``: the live steps that :meth:`run` ran, by key.
    Both are in ``file``, where there is one, so that a study goes on where it was.
    """

    worker: Worker
    text: list[int]
    file: Path | None = None
    timed: dict[str, Timed] = field(default_factory=dict)
    usual: Usual = (math.nan, math.nan, math.nan)

    def __post_init__(self) -> None:
        self._looks: list[Look] = []
        self._answered: list[float] = []
        self._took_s = 0.0
        self._repeats: dict[int, int] = {}
        if self.file is not None and self.file.exists():
            known = json.loads(self.file.read_text(encoding="utf-8"))
            self.usual = tuple(known["usual"])
            self.timed = {
                key: Timed(tuple(Look(*look) for look in looks), tuple(answered))
                for key, (looks, answered) in known["timed"].items()
            }
        else:
            for _ in range(FIRST_LOOKS):
                self.look()
            first = zip(*(look.seconds for look in self._looks), strict=True)
            memory, processor, reading = (median(s for s in one if s) for one in first)
            self.usual = memory, processor, reading

    def take(self, executor: Executor) -> None:
        """Time all that ``executor`` runs from now on; nothing ran yet."""
        executor.advancing = lambda *_: self._answered.append(time.monotonic())
        executor.workers = PacedWorkers(executor.logs / "workers", self)

    def run(self, executor: Executor, steps: Iterable[Step[Any]]) -> None:
        """Each of ``steps`` alone: requests with looks within, workers' timings at one pace."""
        for step in steps:
            if isinstance(step, LiveStep) and step.key not in self.timed:
                self._looks, self._answered = [], []
                with self.looking():
                    executor.run([step])
                if step.key in executor.outcomes.failures:
                    continue
                self.timed[step.key] = Timed(tuple(self._looks), tuple(self._answered))
                self._keep()
            else:
                executor.run([step])

    def runs(
        self, step: LiveStep, outcome: LiveOutcome, memory: float | None
    ) -> tuple[PromptRun, ...]:
        """The requests of a live step, without the looks: at one pace, of whose decoding time the
        share ``memory`` is bound by it, or by the clock (None)."""
        timed, works = self.timed[step.key], (CLOCK, CLOCK)
        if memory is not None:
            works = READING, Work(memory, 1 - memory)
        asked = zip(outcome.runs, timed.answered, strict=True)
        return tuple(retimed(run, timed.looks, at, *works, self.usual) for run, at in asked)

    def of_call(self, call: Callable[[], T], tokens: int) -> tuple[T, float]:
        """What a call of a worker gives, with batches of so many ``tokens``, and the factor that
        takes its seconds to one pace, the looks taken out of them."""
        narrow = float(tokens <= NARROW)
        work = READING if tokens >= WIDE else Work(narrow, 1 - narrow)
        timing = READING if tokens >= WIDE else DECODING
        last = self._looks[-1] if self._looks else None
        if last is None or time.monotonic() - last.ended > FRESH_S or not last.tells(timing):
            self._looks = []
            self.look(timing)
        began = time.monotonic()
        with self.looking(timing):
            got = call()
            ended = time.monotonic()
        seconds = seconds_between(self._looks, began, ended, work, self.usual)
        return got, seconds / (ended - began)

    @contextmanager
    def looking(self, work: Work = ANY) -> Iterator[None]:
        """Look at what bounds ``work`` every few seconds within the block, and after it where it
        was as long; all engines but the reference's stand still meanwhile."""
        over, began = threading.Event(), time.monotonic()

        def watch() -> None:
            while not over.wait(max(EVERY_S, MOST_LOOKING * self._took_s)):
                with _standing(_children() - {self.worker.pid}):
                    self.look(work)

        if not self._looks:
            self.look(work)
        watching = threading.Thread(target=watch, name="pace", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
        if time.monotonic() - began > FRESH_S:
            self.look(work)

    def look(self, work: Work = ANY) -> None:
        """Time the references that tell of ``work``."""
        began = time.monotonic()
        widths = zip((MEMORY, PROCESSOR, READING_TOKENS), work.shares, strict=True)
        memory, processor, reading = (self._batch(w) if share else None for w, share in widths)
        ended = time.monotonic()
        self._looks.append(Look(began, ended, memory, processor, reading))
        self._took_s = ended - began

    def _batch(self, width: int) -> float:
        depth, reads = len(self.text) - READING_TOKENS, width == READING_TOKENS

        def timed(repeats: int) -> float:
            timing = self.worker.time_batch(
                self.text, depth=depth, tokens=width, repeats=repeats, all_outputs=not reads
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
            key: ([astuple(look) for look in one.looks], one.answered)
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
    args = layout.baseline.rounds[0].target_args
    with TemporaryDirectory(prefix="cook-bench-") as logs, KeptWorkers(Path(logs)) as workers:
        load = model_load(
            layout.engine, layout.target.path, args, depth, beyond=READING_TOKENS, outputs=PROCESSOR
        )
        with workers.loaded(layout.engine, load) as (worker, _):
            yield Pace(worker, list(range(1, 1 + depth + READING_TOKENS)), file)
