"""Run steps in dependency order: what is stored is reused, a failure blocks its dependents only."""

from __future__ import annotations

import graphlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from cook.closing import Closing
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import CookError, Interrupted, StepError
from cook.graph.locks import file_lock, timing_lock_path
from cook.graph.piece import Pieces
from cook.graph.step import Source, Step, Workbench, decode
from cook.graph.store import Artifact, Entry, Store
from cook.output import Output
from cook.signals import require_going_on
from cook.units import duration

if TYPE_CHECKING:
    from cook.engines.process.supervisor import Supervisor

R = TypeVar("R")

CANCEL_S = 15.0
"""A program has 5 s to end by itself (TERM_GRACE_S) before it is killed."""

TRUSTED = 0.2
"""Share of a run for which what was expected of it counts as much as what it takes."""


@dataclass(frozen=True)
class Failure:
    """Why a step has no artifact. ``blocked_by`` names the failed step it waited for, if any.

    ``optional``: what asked for it can do without.
    """

    label: str
    error: CookError
    blocked_by: str | None = None
    optional: bool = False


@dataclass
class Outcomes:
    """What became of every step, by key."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    """Labels of the steps that really ran, in order; empty after a rebuild of nothing."""

    def artifact(self, step: Step[Any]) -> Artifact:
        """The artifact of a finished step."""
        try:
            return self.artifacts[step.key]
        except KeyError:
            raise self.failures[step.key].error from None

    def result(self, step: Step[R]) -> R | None:
        """The typed result, or None when the step failed."""
        artifact = self.artifacts.get(step.key)
        return decode(step, artifact) if artifact else None


@dataclass
class Remaining:
    """About how long a run goes on: what its steps are ``expected`` to take, in seconds by key,
    and what those that ran did take.

    A step that nobody expected stands for others that were: which ones run is known only later.
    """

    expected: Mapping[str, float]
    over_s: float = 0.0
    """Expected seconds that are over."""
    taken_s: float = 0.0

    def ran(self, key: str, seconds: float) -> None:
        """The step ``key`` took ``seconds``."""
        self.over_s += self.expected.get(key, seconds)
        self.taken_s += seconds

    @property
    def seconds(self) -> float | None:
        """What is left; None where nothing was expected, or all of that is over."""
        total_s = sum(self.expected.values())
        left_s = total_s - self.over_s
        if left_s <= 0:
            return None
        believed_s = TRUSTED * total_s  # a few short steps say little of the rest
        return left_s * (self.taken_s + believed_s) / (self.over_s + believed_s)

    def told(self, since_s: float = 0.0) -> str:
        """What is left ``since_s`` seconds after the last step ended; empty where that is not
        known, or is over."""
        left_s = round((self.seconds or 0.0) - since_s)
        if left_s <= 0:
            return ""
        return f"about {duration(left_s) if left_s >= 60 else f'{left_s} s'} left"


class Executor(Closing):
    """Runs steps against a store; ``jobs`` untimed steps side by side, timed ones alone.

    A context manager: workers stay loaded from one step to the next until its end.
    ``fresh`` runs every step again, stored or not; ``remeasure`` only what is timed. What is
    stored is looked at before it is used; what is damaged is told and made again. ``reckon``:
    nominal seconds of a step, kept beside those that it took, to reckon others from; ``expected``:
    seconds of what is likely to run, by key; ``watch`` is told of every step that begins to run,
    from whichever thread runs it.
    """

    def __init__(
        self,
        store: Store,
        output: Output,
        *,
        logs: Path,
        jobs: int = 1,
        threads: int | None = None,
        fresh: bool = False,
        remeasure: bool = False,
        reckon: Callable[[Step[Any]], float | None] = lambda _: None,
        expected: Mapping[str, float] = MappingProxyType({}),
        watch: Callable[[Step[Any]], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.output = output
        self.logs = logs
        self.jobs = jobs
        self.threads = threads or len(os.sched_getaffinity(0))
        self.fresh = fresh
        self.remeasure = remeasure
        self.reckon = reckon
        self.watch = watch
        self.remaining = Remaining(expected)
        self.steps = output.steps(self._total, self._left)
        self.outcomes = Outcomes()
        self.workers = KeptWorkers(logs / "workers")
        """Loaded models that wait for the next step that wants them."""

        self._damaged: set[str] = set()
        """Keys of stored artifacts that could not be used."""

        self._pieces_anew: set[str] | None = set() if fresh else None
        """Keys of the pieces that were made again, where all is."""

        self._pending: set[str] = set()
        """Keys of steps that were asked for, will run, and did not end yet."""

        self._ended_at = time.monotonic()
        """When the last step did."""

        self._running: list[Supervisor] = []
        self._cancelled = threading.Event()
        self._ended = threading.Condition()

    def close(self) -> None:
        """End the workers that wait for another step."""
        self.workers.close()

    def run(self, wanted: Iterable[Step[Any]]) -> Outcomes:
        """Run ``wanted`` and all they need; may be called again with more steps."""
        graph = closure(wanted)
        for key in list(graph):
            if key in self.outcomes.artifacts or key in self.outcomes.failures:
                del graph[key]
        sorter = graphlib.TopologicalSorter(
            {key: [s.key for s in step.steps() if s.key in graph] for key, step in graph.items()}
        )
        sorter.prepare()
        self._pending = {step.key for step in graph.values() if self._will_run(step)}
        with self.steps:
            while sorter.is_active():
                ready = [graph[key] for key in sorter.get_ready()]
                self._wave([s for s in ready if not s.timed])
                for step in (s for s in ready if s.timed):
                    self._one(step)
                sorter.done(*(s.key for s in ready))
        return self.outcomes

    def _will_run(self, step: Step[Any]) -> bool:
        """As far as can be told without looking at what is stored."""
        return self._anew(step) or not self.store.path(step.kind, step.key).exists()

    def _anew(self, step: Step[Any]) -> bool:
        return self.fresh or (self.remeasure and step.timed)

    def _total(self) -> int:
        """How many steps this run comes to: a step that nobody expected stands for one that was
        (see :class:`Remaining`)."""
        return max(len(self.remaining.expected), len(self.outcomes.ran) + len(self._pending))

    def _left(self) -> str:
        return self.remaining.told(time.monotonic() - self._ended_at)

    def _wave(self, steps: list[Step[Any]]) -> None:
        if self.jobs <= 1 or len(steps) <= 1:
            for step in steps:
                self._one(step)
            return
        from joblib import Parallel, delayed

        # Threads suffice: each step spends its time waiting for an engine's process.
        try:
            Parallel(n_jobs=self.jobs, prefer="threads")(delayed(self._one)(s) for s in steps)
        except BaseException:
            self._cancel()
            raise

    def _cancel(self) -> None:
        """End what runs in other threads, and wait while each removes its own workspace.

        Ctrl-C reaches this thread only; theirs would die with the process, half done.
        """
        self._cancelled.set()
        until = time.monotonic() + CANCEL_S
        with self._ended:
            while self._running and time.monotonic() < until:
                self.workers.cancel()
                for supervisor in self._running:
                    supervisor.cancel()
                self._ended.wait(0.1)

    def _one(self, step: Step[Any]) -> None:
        try:
            self._made(step)
        finally:
            self._pending.discard(step.key)

    def _made(self, step: Step[Any]) -> None:
        for needed in step.steps():
            if failure := self.outcomes.failures.get(needed.key):
                self.outcomes.failures[step.key] = Failure(
                    step.label,
                    StepError(f"{step.label}: not run, because {failure.label} failed"),
                    blocked_by=failure.blocked_by or failure.label,
                )
                return
        try:
            self.outcomes.artifacts[step.key] = self.make(step)
        except Interrupted:
            raise
        except CookError as error:
            self.outcomes.failures[step.key] = Failure(step.label, error, optional=step.optional)
            self.output.warn(f"{step.label}: {error.message}", hint=error.hint)

    def make(self, step: Step[Any]) -> Artifact:
        """The artifact of one step whose inputs are there; what it fails with is raised."""
        require_going_on()
        anew = self._anew(step)
        if not anew and (artifact := self._stored(step)):
            return artifact

        def waiting() -> None:
            self.output.say(f"{step.label}: waiting, another cook is making it")

        with self.store.locked(step.kind, step.key, waiting):
            if not anew and (artifact := self._stored(step)):
                return artifact
            if step.timed:
                with file_lock(timing_lock_path(), self._waiting_to_time(step)):
                    return self._run(step)
            return self._run(step)

    def _stored(self, step: Step[Any]) -> Artifact | None:
        """The stored artifact, if it may be used: undamaged, and made from what was."""
        artifact = self.store.find(step.kind, step.key)
        if artifact is None:
            if not self.store.path(step.kind, step.key).exists():
                return None
            told = f"{self.store.path(step.kind, step.key)} is damaged"
        elif (fault := self.store.damage(artifact)) is not None:
            told = f"{fault.path} {fault.message}"
        elif artifact.made_from is None and any(s.key in self._damaged for s in step.steps()):
            told = "an older cook made it from an artifact that is damaged now"
        else:
            return artifact
        if step.key not in self._damaged:
            self._damaged.add(step.key)
            self.output.warn(f"{step.label}: {told}; it is made again")
        return None

    def _run(self, step: Step[Any]) -> Artifact:
        from pydantic import TypeAdapter

        from cook.engines.process.supervisor import Supervisor

        self.logs.mkdir(parents=True, exist_ok=True)
        with (
            self._supervised(Supervisor(self.logs / _slug(step)), step) as supervisor,
            self.store.workspace() as directory,
            self.steps.step(step.label) as part,
        ):
            self.watch(step)
            pieces = Pieces(self.store, self.output, self._pieces_anew)
            bench = Workbench(
                directory=directory,
                supervisor=supervisor,
                workers=self.workers,
                artifact=self.outcomes.artifact,
                pieces=pieces,
                threads=self.threads,
                advance=part.to,
            )
            sources = [node for node in step.inputs().values() if isinstance(node, Source)]
            for source in sources:
                source.require_unchanged()
            if not step.in_worker:
                self.workers.make_room(self._read_by(step), devices=True)
            started = time.monotonic()
            result = step.run(bench)
            seconds = time.monotonic() - started
            for source in sources:
                source.require_unchanged()
            adapter: TypeAdapter[Any] = TypeAdapter(step.result_type)
            artifact = self.store.commit(
                directory,
                Entry(
                    kind=step.kind,
                    key=step.key,
                    label=step.label,
                    key_parts=step.key_parts,
                    made_from={n: self._hashes(node) for n, node in step.inputs().items()},
                    result=adapter.dump_python(result, mode="json"),
                    seconds=seconds,
                    work=step.work(),
                    # What was found made says nothing of how long it takes.
                    nominal_s=self.reckon(step) if pieces.used == pieces.made else None,
                    pieces=frozenset(pieces.used),
                ),
            )
            self.remaining.ran(step.key, seconds)
            self._ended_at = time.monotonic()
            self._pending.discard(step.key)
            self.outcomes.ran.append(step.label)
        return artifact

    def _read_by(self, step: Step[Any]) -> dict[Path, int]:
        """Bytes of every file that ``step`` is given."""
        found: dict[Path, int] = {}
        for node in step.inputs().values():
            if isinstance(node, Source):
                found[node.path] = node.size_bytes
            else:
                artifact = self.outcomes.artifact(node)
                found |= {artifact.file(file.name): file.size_bytes for file in artifact.files}
        return found

    def _hashes(self, node: Step[Any] | Source) -> dict[str, str]:
        """SHA-256 by name of the files that a step was given as one input."""
        if isinstance(node, Source):
            return {h.path.name: h.digest.removeprefix("sha256:") for h in node.files}
        return {file.name: file.sha256 for file in self.outcomes.artifact(node).files}

    @contextmanager
    def _supervised(self, supervisor: Supervisor, step: Step[Any]) -> Iterator[Supervisor]:
        """``supervisor`` within reach of :meth:`_cancel` for the time of the block."""
        with self._ended:
            if self._cancelled.is_set():
                raise Interrupted(f"{step.label}: not started, cook is stopping")
            self._running.append(supervisor)
        try:
            yield supervisor
        finally:
            with self._ended:
                self._running.remove(supervisor)
                self._ended.notify_all()

    def _waiting_to_time(self, step: Step[Any]) -> Callable[[], None]:
        return lambda: self.output.say(
            f"{step.label}: waiting, another cook is timing on this machine"
        )


def closure(wanted: Iterable[Step[Any]]) -> dict[str, Step[Any]]:
    """``wanted`` and every step below them, by key, inputs first."""
    found: dict[str, Step[Any]] = {}

    def visit(step: Step[Any]) -> None:
        if step.key in found:
            return
        for needed in step.steps():
            visit(needed)
        found[step.key] = step

    for step in wanted:
        visit(step)
    return found


def _slug(step: Step[Any]) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in step.label)
    return f"{name[:80]}-{step.key[:8]}"
