"""Steps made on a cluster of dask's, over a COOK_HOME that all its machines share.

dask's scheduler decides where a step runs, by dask's own worker resources, and has each key run
once, whoever asks for it. What crosses the network is a step (a frozen description), never what
it makes: that goes into the store. What is timed does not come here: it runs on the machine of
whoever asked (its key holds that machine), and :func:`cook.graph.locks.machine_lock` keeps
everything else off that machine meanwhile, a worker's steps included.

dask pickles over TCP: whoever reaches the scheduler or a worker can run anything there. So a
cluster belongs on a network of one's own, or behind dask's TLS (``tls://``).

Resources that a worker may declare, and what a step then takes of them: ``cores`` and ``memory``
(bytes); ``device``, which a step that loads onto an accelerator always takes; ``engine:NAME``
where not every machine has the very build.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.discover import engine_at
from cook.errors import CookError, Interrupted, PrerequisiteError, StepError
from cook.files import Identity
from cook.graph.execute import LOOK_S, Executor, files_of, step_log
from cook.graph.locks import file_lock, is_locked
from cook.graph.step import Step
from cook.graph.store import SHARED_S, Store
from cook.output import Mode, Output, RunningStep
from cook.paths import cook_home
from cook.provenance import cook_version, installing
from cook.units import plural

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 4.0
RELAYS = 5
"""Times that a step is asked for again which another client's leaving has broken off."""
TOPIC = "cook-steps"
"""Where workers tell what they begin, and how far they are."""
SAY_S = 1.0
FRESH_S = 5.0
"""So old may be what is known of the workers while steps run."""
EXTRA = "cluster"
NOBODY_S = 60.0
"""A step waits so long for a worker that has what it needs, where the last such one left."""
SHARED = "cluster"
"""The folder of COOK_HOME whose ``id`` a worker must see, and its lock held by who asks."""


@dataclass(frozen=True)
class Task:
    """A step as a worker is asked for it. ``home``: the id of the COOK_HOME to make it in;
    ``threads`` None: all cores of the worker's machine."""

    step: Step[Any]
    home: str
    cook: str
    threads: int | None
    fresh: bool


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says of itself. ``sees``: whether its COOK_HOME is that of who asked.

    ``engines``: of those asked about, by name, whether it has the very build there.
    """

    host: str
    cook: str
    dask: str
    python: str
    home: str
    sees: bool
    engines: Mapping[str, bool]


def look(home: str, engines: tuple[Engine, ...]) -> WorkerFacts:
    """Run on every worker before anything else is."""
    return WorkerFacts(
        host=platform.node(),
        cook=cook_version(),
        dask=version("distributed"),
        python=".".join(platform.python_version_tuple()[:2]),
        home=str(cook_home()),
        sees=_is_shared(home),
        engines={engine.name: _has(engine) for engine in engines},
    )


def make(task: Task) -> bool:
    """Run on a worker: make the step, whose inputs are stored; whether it ran.

    What it fails with is raised. It is given up once no client wants it any more.
    """
    from distributed import get_worker

    step = task.step
    if task.cook != cook_version() or not _is_shared(task.home):
        raise PrerequisiteError(
            f"{step.label}: the worker on {platform.node()} has another cook or another COOK_HOME",
            hint="start workers with the same cook and COOK_HOME everywhere",
        )
    engine = step.uses()
    if engine is not None and not _has(engine):
        raise PrerequisiteError(
            f"{step.label}: {platform.node()} has another build of {engine.name} in "
            f"{engine.facts.bin_dir}, or none",
            hint=f"the same build on every machine, or workers with --resources "
            f"'engine:{engine.name}=1' only where it is",
        )
    worker = get_worker()  # of this thread, which is not the one that says how far the step is
    told_at = 0.0

    def say(share: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > SAY_S:
            told_at = time.monotonic()
            worker.log_event(TOPIC, {"key": step.key, "host": platform.node(), "share": share})

    say(0.0)
    home = cook_home()
    executor = Executor(
        Store(home / "store"),
        Output(Mode.QUIET),
        logs=home / "logs",
        threads=task.threads,
        fresh=task.fresh,
        going_on=_wanted(),
        advancing=lambda _, share: say(share),
    )
    with executor:
        outcomes = executor.run_one(step, wait_s=SHARED_S)
        outcomes.artifact(step)
    return bool(outcomes.ran)


def _wanted() -> Callable[[], None]:
    """What raises Interrupted once the task that calls this is wanted by no client, or its worker
    is closing. dask itself never ends a task that has begun."""
    from distributed import get_worker
    from distributed.core import Status

    worker = get_worker()
    key = worker.get_current_task()

    def check() -> None:
        state = worker.state.tasks.get(key)
        ending = worker.status in (Status.closing, Status.closed, Status.failed)
        if state is None or state.state == "cancelled" or ending:
            raise Interrupted("given up by who asked for it")

    return check


def _is_shared(home: str) -> bool:
    """Whether COOK_HOME here is the one called ``home``, and the locks of whoever asks reach here:
    without either, two machines would get into each other's way."""
    folder = cook_home() / SHARED
    try:
        os.listdir(folder)  # noqa: PTH208  a client of NFS then looks again
        return (folder / "id").read_text() == home and is_locked(folder / "lock")
    except OSError:
        return False


@contextmanager
def _shared_home() -> Iterator[str]:
    """The id of this COOK_HOME, for workers to know it by while its lock is held."""
    folder = cook_home() / SHARED
    with file_lock(folder / "lock", shared=True):
        if not (folder / "id").exists():
            own = folder / uuid.uuid4().hex
            own.write_text(own.name)
            with suppress(FileExistsError):  # another cook was faster
                (folder / "id").hardlink_to(own)
            own.unlink()
        yield (folder / "id").read_text()


_builds: dict[str, tuple[Mapping[Path, Identity], bool]] = {}
"""Engines that this worker was asked about, by directory and digest: their files then, and
whether it has that build. A shared COOK_HOME remembers facts of one machine at a time."""


def _has(engine: Engine) -> bool:
    files, key = files_of(engine), f"{engine.facts.bin_dir} {engine.identity.digest}"
    if key not in _builds or _builds[key][0] != files:
        try:
            found = engine_at(engine.name, Path(engine.facts.bin_dir)).identity
            _builds[key] = files, found.digest == engine.identity.digest
        except CookError:
            _builds[key] = files, False
    return _builds[key][1]


class Cluster(Closing):
    """A dask cluster, connected to: what :class:`cook.graph.execute.Elsewhere` wants."""

    def __init__(
        self,
        client: Client,
        home: str,
        *,
        threads: int | None,
        fresh: bool,
    ) -> None:
        self._client, self._home = client, home
        self._threads, self._fresh = threads, fresh
        self._engines: dict[str, bool] = {}
        """Of every engine that was asked about, whether all workers have it."""
        self._futures: dict[str, Future] = {}
        self._parts: dict[str, RunningStep] = {}
        self._cancelled = threading.Event()
        self._known: tuple[float, Mapping[str, Any]] = (float("-inf"), {})
        """The workers, and when they were asked after."""
        client.subscribe_topic(TOPIC, self._told)

    @property
    def lanes(self) -> int:
        return max(sum(int(w["nthreads"]) for w in self._workers().values()), 1)

    def require_able(self, steps: Collection[Step[Any]]) -> None:
        """PrerequisiteError where no worker could ever run one of ``steps``: dask would wait for
        such a worker for ever, without a word."""
        if not steps:
            return
        engines = {e.name: e for s in steps if (e := s.uses()) and e.name not in self._engines}
        self.require_workers(tuple(engines.values()))
        workers = self._workers(now=True)
        for step in steps:
            wanted = self._resources(step, workers)
            if not any(_offers(worker["resources"], wanted) for worker in workers.values()):
                raise PrerequisiteError(
                    f"{step.label} needs {_spelled(wanted)}, and no worker of "
                    f"{self._address} has that",
                    hint=f"start one that has: dask worker {self._address} --nthreads 1 "
                    f"--resources '{_spelled(wanted)}'",
                )

    def make(self, step: Step[Any], part: RunningStep) -> bool:
        """Have ``step`` made or found; see :class:`cook.graph.execute.Elsewhere`."""
        self._parts[step.key] = part
        part.waits = True
        task = Task(step, self._home, cook_version(), self._threads, self._fresh)
        try:
            for _ in range(RELAYS):
                future = self._client.submit(
                    make,
                    task,
                    key=f"{step.kind}-{step.key}",
                    resources=self._resources(step, self._workers()),
                    pure=True,
                )
                self._futures[step.key] = future
                with suppress(Interrupted):  # by another client, which wanted it first and left
                    return self._result(step, future)
                if self._cancelled.is_set():
                    raise Interrupted(f"{step.label}: given up")
                future.release()
            raise StepError(f"{step.label}: given up {RELAYS} times by its workers")
        finally:
            self._parts.pop(step.key, None)
            if (done := self._futures.pop(step.key, None)) is not None:
                done.release()

    def _result(self, step: Step[Any], future: Future) -> bool:
        import asyncio

        from distributed import CancelledError, TimeoutError
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker

        log = step_log(cook_home() / "logs", step)
        able = time.monotonic()
        while True:
            if self._cancelled.is_set():
                raise Interrupted(f"{step.label}: given up")
            try:
                ran: bool = future.result(timeout=LOOK_S)
            except TimeoutError:
                if self._client.status not in ("running", "connecting"):
                    raise _gone(step, self._address) from None
                workers, now = self._workers(), time.monotonic()
                wanted = self._resources(step, workers)
                if any(_offers(w["resources"], wanted) for w in workers.values()):
                    able = now
                if now - able > NOBODY_S:
                    raise StepError(
                        f"{step.label}: the workers that could run it are gone",
                        hint="what is stored stays; the same command again goes on, once one is "
                        "there",
                    ) from None
            except KilledWorker as error:
                raise StepError(
                    f"{step.label}: {plural(error.allowed_failures + 1, 'worker')} died while "
                    "running it",
                    hint="out of memory? The workers' own logs tell; more memory, or fewer "
                    "threads a worker",
                    log=log,
                ) from None
            except (CancelledError, CommClosedError, asyncio.CancelledError):
                if self._cancelled.is_set():
                    raise Interrupted(f"{step.label}: given up") from None
                raise _gone(step, self._address) from None
            except CookError:
                raise
            except Exception as error:
                raise StepError(
                    f"{step.label}: a worker failed: {type(error).__name__}: {error}", log=log
                ) from None
            else:
                return ran

    def cancel(self) -> None:
        """Give up what was asked for; dask keeps what another client wants."""
        self._cancelled.set()
        with suppress(Exception):  # a scheduler that is gone wants nothing any more
            self._client.cancel(list(self._futures.values()))

    def close(self) -> None:
        with suppress(Exception):
            self._client.close(timeout=CONNECT_S)

    @property
    def _address(self) -> str:
        return str(self._client.scheduler.address)

    def _workers(self, *, now: bool = False) -> Mapping[str, Any]:
        """What the scheduler says of every worker, by address; ``now``: asked anew."""
        asked_at, found = self._known
        if now or time.monotonic() - asked_at > FRESH_S:
            found = self._client.scheduler_info(n_workers=-1)["workers"]
            self._known = time.monotonic(), found
        return found

    def require_workers(self, engines: tuple[Engine, ...] = ()) -> None:
        """PrerequisiteError where a worker is not what it must be."""
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_S)  # one may be starting again
        except TimeoutError:
            raise PrerequisiteError(
                f"no worker is connected to {self._address}",
                hint=f"on every machine, with the same COOK_HOME: dask worker {self._address} "
                "--nthreads 1",
            ) from None
        found: dict[str, WorkerFacts | Exception] = self._client.run(
            look, self._home, engines, on_error="return"
        )
        own = look(self._home, ())
        for address, facts in found.items():
            if isinstance(facts, Exception):
                raise PrerequisiteError(
                    f"worker {address} cannot answer: {type(facts).__name__}: {facts}",
                    hint=f"it needs cook as well: {installing(EXTRA)}",
                )
            where = f"the worker on {facts.host} ({address})"
            for what, theirs, ours in (
                ("cook", facts.cook, own.cook),
                ("dask", facts.dask, own.dask),
                ("Python", facts.python, own.python),
            ):
                if theirs != ours:
                    raise PrerequisiteError(
                        f"{where} runs {what} {theirs}, this is {what} {ours}",
                        hint="the same versions on every machine",
                    )
            if not facts.sees:
                raise PrerequisiteError(
                    f"{where} does not share this store: its COOK_HOME is {facts.home}, this one's "
                    f"{own.home}",
                    hint="the same COOK_HOME everywhere, on a file system that all machines share "
                    "and whose locks reach all of them (NFS 4 does)",
                )
        for engine in engines:
            having = [f.engines[engine.name] for f in found.values() if isinstance(f, WorkerFacts)]
            if not any(having):
                raise PrerequisiteError(
                    f"no worker of {self._address} has this build of {engine.name} in "
                    f"{engine.facts.bin_dir}",
                    hint="put the very same build at the same place on the workers' machines",
                )
            self._engines[engine.name] = all(having)

    def _resources(self, step: Step[Any], workers: Mapping[str, Any]) -> dict[str, float]:
        """What of dask's resources ``step`` takes."""
        declared = [worker["resources"] for worker in workers.values()]
        needs, engine = step.needs(), step.uses()
        wanted: dict[str, float] = {}
        cores = [offered["cores"] for offered in declared if "cores" in offered]
        if cores:
            wanted["cores"] = self._threads or min(cores)
        if needs.memory_bytes and any("memory" in offered for offered in declared):
            wanted["memory"] = needs.memory_bytes
        if needs.device:
            wanted["device"] = 1
        if engine is not None and not self._engines.get(engine.name, True):
            wanted[f"engine:{engine.name}"] = 1
        return wanted

    def _told(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """A worker begins a step, or is so far with it."""
        _, said = event
        if (part := self._parts.get(said["key"])) is not None:
            part.where, part.waits = str(said["host"]), False
            part.to(float(said["share"]))


@contextmanager
def connected(
    address: str,
    *,
    threads: int | None,
    fresh: bool,
) -> Iterator[Cluster]:
    """The cluster whose scheduler is at ``address`` (``tcp://HOST:PORT``), for the block.

    PrerequisiteError where dask is not installed, nobody answers, no worker is there, or one has
    another cook, dask, Python or store.
    """
    try:
        from distributed import Client
    except ImportError:
        raise PrerequisiteError(
            "a cluster needs dask, which is not installed", hint=installing(EXTRA)
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is told by us
    with _shared_home() as home:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are compared below
            try:
                client = Client(address, timeout=CONNECT_S, set_as_default=False)
            except (OSError, TimeoutError, ValueError) as error:
                raise PrerequisiteError(
                    f"no dask scheduler answers at {address}: {error}",
                    hint="start one: dask scheduler --host ADDRESS",
                ) from None
        with Cluster(client, home, threads=threads, fresh=fresh) as cluster:
            cluster.require_workers()
            yield cluster


def _offers(offered: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(offered.get(name, 0) >= amount for name, amount in wanted.items())


def _spelled(resources: Mapping[str, float]) -> str:
    return " ".join(f"{name}={amount:g}" for name, amount in resources.items())


def _gone(step: Step[Any], address: str) -> StepError:
    return StepError(
        f"{step.label}: the scheduler at {address} is gone",
        hint="what is stored stays; the same command again goes on, once there is a scheduler",
    )
