"""Steps made on a cluster of dask's, over a COOK_HOME that all its machines share.

dask's scheduler decides where a step runs, by dask's own worker resources, and has each key run
once, whoever asks for it. What crosses the network is a step (a frozen description), never what
it makes: that goes into the store. A worker does with it what ``cook run KEY`` does with the step
that it has found. What is timed does not come here: it runs on the machine where the build was
started (its key holds that machine), and :func:`cook.graph.locks.machine_lock` keeps everything
else off that machine meanwhile, a worker's steps included.

dask pickles over TCP: anyone who reaches the scheduler or a worker can run anything there. So a
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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cook.closing import Closing
from cook.engines.base import Engine
from cook.engines.discover import engine_at
from cook.errors import CookError, Interrupted, PrerequisiteError, StepError
from cook.files import Identity, identity
from cook.graph.execute import LOOK_S, Executor, step_log
from cook.graph.locks import file_lock, is_locked
from cook.graph.step import Step
from cook.graph.store import SHARED_S, Store
from cook.output import Mode, Output, RunningStep
from cook.paths import cook_home
from cook.provenance import cook_version, install_command
from cook.units import plural

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 4.0
RELAYS = 5
"""Times that a step is asked for again after another client, which wanted it first, has left."""
TOPIC = "cook-steps"
"""Where workers report which step they begin, and how far it is."""
REPORT_S = 1.0
FRESH_S = 5.0
"""So old may be what is known of the workers while steps run."""
EXTRA = "cluster"
NO_WORKER_S = 60.0
"""A step waits so long for a worker that has what it needs, after the last such one left."""
SHARED = "cluster"
"""The folder of COOK_HOME whose ``id`` a worker must see, and the lock that clients hold on it."""


@dataclass(frozen=True)
class MachineFacts:
    """What the cook of a client or of a worker says of itself.

    ``home_id``: of its COOK_HOME; None where no client's lock on it shows. ``engines``: names of
    those asked about of which it has the very build.
    """

    host: str
    versions: Mapping[str, str]
    home: str
    home_id: str | None
    engines: frozenset[str]

    def require_like(self, client: MachineFacts, where: str) -> None:
        """PrerequisiteError, about ``where``, unless it can make steps for ``client``."""
        for program, own in client.versions.items():
            if self.versions[program] != own:
                raise PrerequisiteError(
                    f"{where} runs {program} {self.versions[program]}, this is {program} {own}",
                    hint="the same versions on every machine",
                )
        if self.home_id is None or self.home_id != client.home_id:
            raise PrerequisiteError(
                f"{where} does not share this store: its COOK_HOME is {self.home}, this one's "
                f"{client.home}",
                hint="the same COOK_HOME everywhere, on a file system that all machines share "
                "and whose locks reach all of them (NFS 4 does)",
            )


def machine_facts(engines: tuple[Engine, ...] = ()) -> MachineFacts:
    """Of the process that calls this: the client, and every worker before anything else runs."""
    folder = cook_home() / SHARED
    home_id: str | None = None
    # Where a client's lock does not reach, two machines would get into each other's way.
    with suppress(OSError):
        os.listdir(folder)  # noqa: PTH208  a client of NFS then looks again
        home_id = (folder / "id").read_text() if is_locked(folder / "lock") else None
    return MachineFacts(
        host=platform.node(),
        versions={
            "cook": cook_version(),
            "dask": version("distributed"),
            "Python": ".".join(platform.python_version_tuple()[:2]),
        },
        home=str(cook_home()),
        home_id=home_id,
        engines=frozenset(
            engine.name
            for engine in engines
            if engine.identity.digest
            == _digest_of(Path(engine.facts.bin_dir), tuple(map(identity, engine.files)))
        ),
    )


def make(step: Step[Any], client: MachineFacts, threads: int | None, fresh: bool) -> bool:
    """Run on a worker: make ``step``, whose inputs are stored; whether it ran.

    What it fails with is raised. It is given up once no client wants it any more. ``threads``
    None: all cores of the worker's machine.
    """
    from distributed import get_worker
    from distributed.core import Status

    engine = step.uses()
    here = machine_facts((engine,) if engine is not None else ())
    here.require_like(client, f"{step.label}: the worker on {here.host}")
    if engine is not None and engine.name not in here.engines:
        raise PrerequisiteError(
            f"{step.label}: {here.host} has another build of {engine.name} in "
            f"{engine.facts.bin_dir}, or none",
            hint=f"the same build on every machine, or workers with --resources "
            f"'engine:{engine.name}=1' only where it is",
        )
    worker = get_worker()  # of this thread, which is not the one that reports progress
    task, reported_at = worker.get_current_task(), 0.0

    def report(share: float) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > REPORT_S:
            reported_at = time.monotonic()
            worker.log_event(TOPIC, {"key": step.key, "host": here.host, "share": share})

    def require_wanted() -> None:
        """dask itself never ends a task that has begun."""
        state = worker.state.tasks.get(task)
        ending = worker.status in (Status.closing, Status.closed, Status.failed)
        if state is None or state.state == "cancelled" or ending:
            raise Interrupted("given up by the client that asked for it")

    report(0.0)
    home = cook_home()
    with Executor(
        Store(home / "store"),
        Output(Mode.QUIET),
        logs=home / "logs",
        threads=threads,
        fresh=fresh,
        going_on=require_wanted,
        advancing=lambda _, share: report(share),
    ) as executor:
        _, ran = executor.run_one(step, wait_s=SHARED_S)
    return ran


@lru_cache(maxsize=16)
def _digest_of(bin_dir: Path, _: tuple[Identity, ...]) -> str | None:
    """The digest of the build in ``bin_dir``, kept while its files stay what they are: a shared
    COOK_HOME remembers facts of one machine at a time."""
    try:
        return engine_at(bin_dir.name, bin_dir).identity.digest
    except CookError:
        return None


class Cluster(Closing):
    """A dask cluster, connected to: a :class:`cook.graph.execute.RemoteExecutor`."""

    def __init__(
        self, client: Client, own: MachineFacts, *, threads: int | None, fresh: bool
    ) -> None:
        self._client, self._own = client, own
        self._threads, self._fresh = threads, fresh
        self._engines: dict[str, bool] = {}
        """Of every engine that was asked about, whether all workers have it."""
        self._futures: dict[str, Future] = {}
        self._parts: dict[str, RunningStep] = {}
        self._cancelled = threading.Event()
        self._known: tuple[float, Mapping[str, Any]] = (float("-inf"), {})
        """When the scheduler was last asked for its workers, and what it said."""
        client.subscribe_topic(TOPIC, self._show_progress)

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
            if not self._is_offered(step, workers):
                wanted = " ".join(
                    f"{name}={amount:g}" for name, amount in self._resources(step, workers).items()
                )
                raise PrerequisiteError(
                    f"{step.label} needs {wanted}, and no worker of {self._address} has that",
                    hint=f"start one that has: dask worker {self._address} --nthreads 1 "
                    f"--resources '{wanted}'",
                )

    def make(self, step: Step[Any], part: RunningStep) -> bool:
        """Have ``step`` made or found; see :class:`cook.graph.execute.RemoteExecutor`."""
        self._parts[step.key] = part
        part.waits = True
        try:
            for _ in range(RELAYS):
                future = self._client.submit(
                    make,
                    step,
                    self._own,
                    self._threads,
                    self._fresh,
                    key=f"{step.kind}-{step.key}",
                    resources=self._resources(step, self._workers()),
                    pure=True,
                )
                self._futures[step.key] = future
                try:
                    return self._result(step, future)
                except Interrupted:  # by another client, which wanted it first and left
                    if self._cancelled.is_set():
                        raise
                future.release()
            raise StepError(f"{step.label}: given up {RELAYS} times by its workers")
        finally:
            self._parts.pop(step.key, None)
            if (done := self._futures.pop(step.key, None)) is not None:
                done.release()

    def _result(self, step: Step[Any], future: Future) -> bool:
        """What :func:`make` returned or raised; StepError where the cluster failed it."""
        import asyncio

        from distributed import CancelledError
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker

        log = step_log(cook_home() / "logs", step)
        gone = StepError(
            f"{step.label}: the scheduler at {self._address} is gone",
            hint="what is stored stays; the same command again goes on, once there is a scheduler",
        )
        offered_at = time.monotonic()
        while not self._cancelled.is_set():
            try:
                ran: bool = future.result(timeout=LOOK_S)
            except TimeoutError:
                if self._client.status not in ("running", "connecting"):
                    raise gone from None
                if self._is_offered(step, self._workers()):
                    offered_at = time.monotonic()
                elif time.monotonic() - offered_at > NO_WORKER_S:
                    raise StepError(
                        f"{step.label}: the workers that could run it are gone",
                        hint="what is stored stays; the same command again goes on, once one is "
                        "there",
                    ) from None
            except KilledWorker as error:
                raise StepError(
                    f"{step.label}: {plural(error.allowed_failures + 1, 'worker')} died while "
                    "running it",
                    hint="out of memory? See the workers' own logs; more memory, or fewer "
                    "threads a worker",
                    log=log,
                ) from None
            except (CancelledError, CommClosedError, asyncio.CancelledError):
                if not self._cancelled.is_set():
                    raise gone from None
            except CookError:
                raise
            except Exception as error:
                raise StepError(
                    f"{step.label}: a worker failed: {type(error).__name__}: {error}", log=log
                ) from None
            else:
                return ran
        raise Interrupted(f"{step.label}: given up")

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
        """What the scheduler says of every worker, by address; ``now``: it is asked again."""
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
        found = self._client.run(machine_facts, engines, on_error="return")
        for address, facts in found.items():
            if isinstance(facts, Exception):
                raise PrerequisiteError(
                    f"worker {address} cannot answer: {type(facts).__name__}: {facts}",
                    hint=f"it needs cook as well: {install_command(EXTRA)}",
                )
            facts.require_like(self._own, f"the worker on {facts.host} ({address})")
        for engine in engines:
            having = [engine.name in facts.engines for facts in found.values()]
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

    def _is_offered(self, step: Step[Any], workers: Mapping[str, Any]) -> bool:
        """Whether one of ``workers`` has all that ``step`` takes."""
        wanted = self._resources(step, workers).items()
        return any(
            all(worker["resources"].get(name, 0) >= amount for name, amount in wanted)
            for worker in workers.values()
        )

    def _show_progress(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """A worker begins a step, or is so far with it."""
        _, report = event
        if (part := self._parts.get(report["key"])) is not None:
            part.where, part.waits = str(report["host"]), False
            part.to(float(report["share"]))


@contextmanager
def connected(address: str, *, threads: int | None, fresh: bool) -> Iterator[Cluster]:
    """The cluster whose scheduler is at ``address`` (``tcp://HOST:PORT``), for the block.

    PrerequisiteError where dask is not installed, no scheduler answers, no worker is there, or one
    has another cook, dask, Python or store.
    """
    try:
        from distributed import Client
    except ImportError:
        raise PrerequisiteError(
            "a cluster needs dask, which is not installed", hint=install_command(EXTRA)
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # cook reports what matters
    folder = cook_home() / SHARED
    with file_lock(folder / "lock", shared=True):
        if not (folder / "id").exists():
            own = folder / uuid.uuid4().hex
            own.write_text(own.name)
            with suppress(FileExistsError):  # another cook was faster
                (folder / "id").hardlink_to(own)
            own.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions are compared below
            try:
                client = Client(address, timeout=CONNECT_S, set_as_default=False)
            except (OSError, TimeoutError, ValueError) as error:
                raise PrerequisiteError(
                    f"no dask scheduler answers at {address}: {error}",
                    hint="start one: dask scheduler --host ADDRESS",
                ) from None
        with Cluster(client, machine_facts(), threads=threads, fresh=fresh) as cluster:
            cluster.require_workers()
            yield cluster
