"""Run steps as soon as their inputs are there and the machine has room for them: what is stored is
reused, a failure blocks its dependents only, and nothing runs during a timing."""

from __future__ import annotations

import graphlib
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.worker.kept_workers import FREE_SHARE, KeptWorkers
from cook.errors import CookError, InputError, Interrupted, PrerequisiteError, StepError
from cook.files import HashedFile, hash_file
from cook.graph.locks import machine_lock
from cook.graph.piece import Pieces
from cook.graph.step import Needs, Source, Step, Workbench, decode
from cook.graph.store import Artifact, Entry, Store
from cook.output import Output, RunningStep
from cook.provenance import available_memory_bytes
from cook.signals import require_going_on
from cook.units import duration

if TYPE_CHECKING:
    from cook.engines.process.supervisor import Supervisor

R = TypeVar("R")

CANCEL_S = 15.0
"""A program has 1 s to end (CANCEL_TERM_S) before it is killed."""

LOOK_S = 0.5
"""How often cook looks whether it is to stop, while steps run."""

MOST_REMOTE = 256
"""Steps that are asked of other machines at a time."""

TRUSTED = 0.2
"""Share of a run for which what was expected of it counts as much as what it takes."""

Ended = queue.SimpleQueue[tuple[Step[Any], BaseException | None]]
"""Steps that have ended, and what they failed with that no step may fail with."""


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

    def why_not(self, step: Step[Any] | None) -> str:
        """Why ``step`` has no result."""
        if step is None:
            return "not asked for"
        failure = self.failures.get(step.key)
        return failure.error.message if failure else "not run"


@dataclass
class Remaining:
    """About how long a run goes on: what its steps are ``expected`` to take, in seconds by key,
    and what those that ran did take.

    Those of ``alone`` run one after the other, of the others ``lanes`` side by side. A step, run
    or found, that was not expected stands for one that was; what is known to be stored takes 0 s.
    """

    expected: Mapping[str, float]
    alone: Collection[str] = frozenset()
    lanes: int = 1
    over_s: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """Expected seconds that are over, of steps alone and of others."""
    taken_s: float = 0.0

    def ran(self, key: str, seconds: float, *, alone: bool = False) -> None:
        """The step ``key`` took ``seconds``."""
        self.over_s[alone] += self.expected.get(key, seconds)
        self.taken_s += seconds

    @property
    def seconds(self) -> float | None:
        """What is left; None where nothing was expected, or all of that is over."""
        total_s = sum(self.expected.values())
        over_s = sum(self.over_s.values())
        if total_s <= over_s:
            return None
        total_alone_s = sum(self.expected[key] for key in self.alone)
        # What ran in the place of another may have been of the other kind.
        alone_s = min(max(total_alone_s - self.over_s[True], 0.0), total_s - over_s)
        left_s = alone_s + (total_s - over_s - alone_s) / self.lanes
        believed_s = TRUSTED * total_s  # a few short steps say little of the rest
        return left_s * (self.taken_s + believed_s) / (over_s + believed_s)

    def text(self, since_s: float = 0.0) -> str:
        """What is left ``since_s`` seconds after the last step ended, as words; empty where that
        is not known, or is over."""
        left_s = round((self.seconds or 0.0) - since_s)
        words = duration(left_s) if left_s >= 60 else f"{left_s} s"
        return f"about {words} left" if left_s > 0 else ""


class RemoteExecutor(Protocol):
    """Other machines that make steps, over the same store."""

    @property
    def lanes(self) -> int:
        """How many steps they take at once."""

    def require_able(self, steps: Collection[Step[Any]]) -> None:
        """PrerequisiteError where none of them has what one of ``steps`` needs."""

    def make(self, step: Step[Any], part: RunningStep) -> bool:
        """Have ``step``, whose inputs are stored, made or found; whether it ran.

        What it fails with is raised as if it had run here. ``part`` then says where it runs.
        """

    def cancel(self) -> None:
        """Give up all that was asked of them, unless another client wants it as well."""


class Executor(Closing):
    """Runs steps against a store; ``jobs`` untimed steps side by side, timed ones alone.

    A context manager: workers stay loaded from one step to the next until its end.
    ``fresh`` runs every step again, stored or not; ``remeasure`` only what is timed. What is
    stored is looked at before it is used; what is damaged is reported and made again. ``expected``:
    seconds of what is likely to run, by key, ``alone`` those of them that are timed; ``watch`` is
    called with every step that begins to run, from the thread that runs it, ``advancing`` with the
    share of it that is done. ``remote`` makes what is not timed; timings are this machine's.
    ``going_on`` raises when it is time to stop.
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
        expected: Mapping[str, float] = MappingProxyType({}),
        alone: Collection[str] = frozenset(),
        watch: Callable[[Step[Any]], None] = lambda _: None,
        remote: RemoteExecutor | None = None,
        going_on: Callable[[], None] = require_going_on,
        advancing: Callable[[Step[Any], float], None] = lambda *_: None,
    ) -> None:
        self.store = store
        self.output = output
        self.logs = logs
        self.jobs = jobs
        self.threads = threads or len(os.sched_getaffinity(0))
        self.fresh = fresh
        self.remeasure = remeasure
        self.watch = watch
        self.remote = remote
        self.going_on = going_on
        self.advancing = advancing
        self.remaining = Remaining(expected, alone, remote.lanes if remote else jobs)
        self._to_run = sum(seconds > 0 for seconds in expected.values())  # or others instead
        self.steps = output.steps(
            lambda: max(self._to_run, len(self.outcomes.ran) + len(self._pending)),
            lambda: self.remaining.text(time.monotonic() - self._ended_at),
        )
        self.outcomes = Outcomes()
        self.workers = KeptWorkers(logs / "workers")
        """Loaded models that wait for the next step that wants them."""

        self._places = _Places(jobs) if remote is None else _RemotePlaces()

        self._damaged: set[str] = set()
        """Keys of stored artifacts that could not be used."""

        self._fresh_pieces: set[str] | None = set() if fresh else None
        """Keys of the pieces that were made again, where everything is."""

        self._pending: set[str] = set()
        """Keys of steps that were asked for, will run, and did not end yet."""

        self._ended_at = time.monotonic()
        """When the last step did."""

        self._engines: dict[str, tuple[HashedFile, ...]] = {}
        """The files of every engine as they were when it was first used, by its digest."""

        self._running: list[Supervisor] = []
        self._cancelled = threading.Event()
        self._ended = threading.Condition()

    def close(self) -> None:
        """End the workers that wait for another step."""
        self.workers.close()

    def run(self, wanted: Iterable[Step[Any]]) -> Outcomes:
        """Run ``wanted`` and all they need; may be called again with more steps."""
        over = self.outcomes.artifacts.keys() | self.outcomes.failures.keys()
        return self._run_all({k: step for k, step in closure(wanted).items() if k not in over})

    def run_one(
        self,
        step: Step[Any],
        *,
        wait_s: float = 0.0,
        hint: Callable[[Step[Any]], str | None] = lambda _: None,
    ) -> tuple[Artifact, bool]:
        """The artifact of ``step``, and whether it ran; nothing that it needs does.

        PrerequisiteError where an input is not stored, nor shows within ``wait_s``; ``hint`` says
        how that input is made.
        """
        for needed in step.steps():
            self.store.awaited(needed.kind, needed.key, wait_s)
            if (stored := self._stored(needed)) is None:
                raise PrerequisiteError(
                    f"{step.label}: its input {needed.label} is not made yet", hint=hint(needed)
                )
            self.outcomes.artifacts[needed.key] = stored
        self._run_all({step.key: step})
        return self.outcomes.artifact(step), bool(self.outcomes.ran)

    def _run_all(self, graph: Mapping[str, Step[Any]]) -> Outcomes:
        sorter = graphlib.TopologicalSorter(
            {key: [s.key for s in step.steps() if s.key in graph] for key, step in graph.items()}
        )
        sorter.prepare()
        # As far as is known without looking at what is stored.
        will_run = [
            step
            for step in graph.values()
            if self._is_repeated(step) or not self.store.path(step.kind, step.key).exists()
        ]
        self._pending = {step.key for step in will_run}
        for engine in filter(None, (step.uses() for step in will_run)):
            self._files_of(engine)
        if self.remote is not None:
            self.remote.require_able([step for step in will_run if not step.timed])
        order = {key: place for place, key in enumerate(graph)}
        expected = self.remaining.expected if self.jobs > 1 else {}
        ended: Ended = queue.SimpleQueue()
        ready: list[Step[Any]] = []
        with self.steps:
            try:
                while sorter.is_active():
                    ready += (graph[key] for key in sorter.get_ready())
                    # Side by side the longest begins first; timings keep their order.
                    ready.sort(key=lambda s: (s.timed or -expected.get(s.key, 0.0), order[s.key]))
                    while (step := self._places.take(ready)) is not None:
                        ready.remove(step)
                        self._begin(step, ended)
                    step = self._wait(ended)
                    self._places.free(step)
                    self._pending.discard(step.key)
                    sorter.done(step.key)
            except BaseException:
                self._cancel()
                raise
        return self.outcomes

    def _begin(self, step: Step[Any], ended: Ended) -> None:
        """Run ``step`` in a thread, which suffices: it spends its time waiting for an engine.

        Ctrl-C reaches the main thread, and so never breaks off a step that is tidying up.
        """

        def work() -> None:
            error = None
            try:
                self._note_outcome(step)
            except BaseException as raised:
                error = raised
            ended.put((step, error))

        threading.Thread(target=work, name=step.label, daemon=True).start()

    def _wait(self, ended: Ended) -> Step[Any]:
        """The next step that ends; what no step may fail with is raised."""
        while True:
            self.going_on()
            try:
                step, error = ended.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return step

    def _is_repeated(self, step: Step[Any]) -> bool:
        return self.fresh or (self.remeasure and step.timed)

    def _cancel(self) -> None:
        """End what runs, and wait while each step removes its own workspace.

        Ctrl-C reaches the main thread only; the others would die with the process, half done. The
        second one kills what has not ended.
        """
        self._cancelled.set()
        try:
            if self.remote is not None:
                self.remote.cancel()
            self._end(now=False)
        except KeyboardInterrupt:
            self._end(now=True)
            raise

    def _end(self, *, now: bool) -> None:
        until = time.monotonic() + CANCEL_S
        with self._ended:
            while self._running and time.monotonic() < until:
                self.workers.cancel(now=now)
                for supervisor in self._running:
                    supervisor.cancel(now=now)
                self._ended.wait(0.1)

    def _note_outcome(self, step: Step[Any]) -> None:
        """Make ``step``, and note its artifact, or its failure."""
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
            if self._cancelled.is_set():  # it failed of that
                raise Interrupted(f"{step.label}: interrupted") from None
            self.outcomes.failures[step.key] = Failure(step.label, error, optional=step.optional)
            self.output.warn(f"{step.label}: {error.message}", hint=error.hint)

    def make(self, step: Step[Any]) -> Artifact:
        """The artifact of one step whose inputs are there; what it fails with is raised."""
        repeated = self._is_repeated(step)
        if not repeated and (artifact := self._stored(step)):
            if step.key not in self.remaining.expected:
                self.remaining.ran(step.key, artifact.seconds, alone=step.timed)
                self._to_run -= 1
            return artifact
        if self.remote is not None and not step.timed:
            with self.steps.step(step.label) as part:
                self.watch(step)
                ran = self.remote.make(step, part)
                artifact = self.store.awaited(step.kind, step.key)
                if artifact is None:
                    raise StepError(
                        f"{step.label}: a worker has made it, but it is not in the store here",
                        hint="is COOK_HOME on a file system that all machines share?",
                    )
            if ran:
                self._count(step, artifact.seconds)
            return artifact

        def waiting() -> None:
            self.output.say(f"{step.label}: waiting, another cook is making it")

        def waiting_for_machine() -> None:
            why = "works" if step.timed else "is timing"
            self.output.say(f"{step.label}: waiting, another cook {why} on this machine")

        with self.store.locked(step.kind, step.key, waiting):
            if not repeated and (artifact := self._stored(step)):
                return artifact
            with machine_lock(alone=step.timed, waiting=waiting_for_machine):
                return self._run(step)

    def _count(self, step: Step[Any], seconds: float) -> None:
        """``step`` ran, and took ``seconds``."""
        self.remaining.ran(step.key, seconds, alone=step.timed)
        self._ended_at = time.monotonic()
        self._pending.discard(step.key)
        self.outcomes.ran.append(step.label)

    def _stored(self, step: Step[Any]) -> Artifact | None:
        """The stored artifact, if it may be used: undamaged, and made from what was."""
        if (artifact := self.store.find(step.kind, step.key)) is None:
            if not self.store.path(step.kind, step.key).exists():
                return None
            damage = f"{self.store.path(step.kind, step.key)} is damaged"
        elif (fault := self.store.damage(artifact)) is not None:
            damage = f"{fault.path} {fault.message}"
        else:
            return artifact
        if step.key not in self._damaged:
            self._damaged.add(step.key)
            self.output.warn(f"{step.label}: {damage}; it is made again")
        return None

    def _run(self, step: Step[Any]) -> Artifact:
        from pydantic import TypeAdapter

        from cook.engines.process.supervisor import Supervisor

        self.logs.mkdir(parents=True, exist_ok=True)
        with (
            self._supervised(Supervisor(step_log(self.logs, step)), step) as supervisor,
            self.store.workspace() as directory,
            self.steps.step(step.label) as part,
        ):
            self.watch(step)
            pieces = Pieces(self.store, self.output, self._fresh_pieces)

            def advance(share: float) -> None:
                part.to(share)
                self.advancing(step, share)

            bench = Workbench(
                directory=directory,
                supervisor=supervisor,
                workers=self.workers,
                artifact=self.outcomes.artifact,
                pieces=pieces,
                threads=self.threads,
                advance=advance,
            )
            sources = [node for node in step.inputs().values() if isinstance(node, Source)]
            for source in sources:
                source.require_unchanged()
            self._require_same_engine(step)
            if not step.in_worker:
                self.workers.make_room(self._read_by(step), devices=True)
            started = time.monotonic()
            result = step.run(bench)
            seconds = time.monotonic() - started
            for source in sources:
                source.require_unchanged()
            self._require_same_engine(step)
            adapter: TypeAdapter[Any] = TypeAdapter(step.result_type)
            # Pieces that were found say nothing of how long they take to make.
            cost = step.cost() if pieces.used == pieces.made else None
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
                    nominal_s=cost.nominal_s if cost is not None else None,
                    pieces=frozenset(pieces.used),
                ),
            )
            self._count(step, seconds)
        return artifact

    def _require_same_engine(self, step: Step[Any]) -> None:
        """PrerequisiteError where the engine was replaced since this run began: what it makes now
        would be kept under the key of the one that it was."""
        engine = step.uses()
        for file in self._files_of(engine) if engine is not None else ():
            try:
                file.require_unchanged()
            except InputError:
                raise PrerequisiteError(
                    f"{step.label}: {file.path} was replaced while this ran",
                    hint="the same command again runs what is missing on the engine as it is now",
                ) from None

    def _files_of(self, engine: Engine) -> tuple[HashedFile, ...]:
        """The engine's files; PrerequisiteError where they are others than when it was found."""
        key = engine.identity.digest
        if key not in self._engines:
            found = tuple(map(hash_file, engine.files))
            changed = [f for f in found if f.digest != f"sha256:{engine.facts.files[f.path.name]}"]
            if changed:
                raise PrerequisiteError(
                    f"{changed[0].path} was replaced since this began",
                    hint="the same command again takes the engine as it is now",
                )
            self._engines[key] = found
        return self._engines[key]

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


class _Places:
    """Who may begin on one machine: ``jobs`` untimed steps that fit together, or a timed one."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._taken: dict[str, Needs] = {}
        self._timed: str | None = None
        self._timing = False
        """Whether the last that began was timed: then so is the next, if one is ready, because
        their order was chosen with care."""
        available = available_memory_bytes()
        self._memory_bytes = FREE_SHARE * available if available is not None else float("inf")

    def take(self, ready: Iterable[Step[Any]]) -> Step[Any] | None:
        """The step of ``ready`` that begins now, if any does."""
        if self._timed is not None:
            return None
        timed = next((step for step in ready if step.timed), None)
        if timed is None or not self._timing:
            others = self._taken.values()
            for step in ready:
                if step.timed:
                    continue
                needs = step.needs()
                memory_bytes = needs.memory_bytes + sum(other.memory_bytes for other in others)
                fits = not others or (
                    len(others) < self._jobs
                    and not (needs.device and any(other.device for other in others))
                    and memory_bytes <= self._memory_bytes
                )
                if fits:
                    self._taken[step.key], self._timing = needs, False
                    return step
        if timed is None or self._taken:
            return None
        self._timed, self._timing = timed.key, True
        return timed

    def free(self, step: Step[Any]) -> None:
        """``step`` has ended."""
        self._taken.pop(step.key, None)
        if self._timed == step.key:
            self._timed = None


class _RemotePlaces:
    """Who may begin where other machines make what is untimed, whose scheduler knows what fits
    where; timings run here, one at a time."""

    def __init__(self) -> None:
        self._running: dict[bool, set[str]] = {True: set(), False: set()}
        """Keys of steps by whether they are timed."""

    def take(self, ready: Iterable[Step[Any]]) -> Step[Any] | None:
        for step in ready:
            running = self._running[step.timed]
            if len(running) < (1 if step.timed else MOST_REMOTE):
                running.add(step.key)
                return step
        return None

    def free(self, step: Step[Any]) -> None:
        self._running[step.timed].discard(step.key)


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


def step_log(logs: Path, step: Step[Any]) -> Path:
    """The folder below ``logs`` for what the programs of ``step`` say."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in step.label)
    return logs / f"{name[:80]}-{step.key[:8]}"
