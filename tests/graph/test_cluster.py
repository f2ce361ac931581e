"""A real dask cluster in processes of its own: what runs there, what is refused, what is left.

Its steps are sleeps; those of real engines are in tests/attacks/test_cluster.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cook.errors import Interrupted, PrerequisiteError, StepError
from cook.graph import cluster as module
from cook.graph.cluster import connected
from cook.graph.execute import Executor, Outcomes
from cook.graph.step import Needs, Step
from cook.graph.store import Store
from cook.output import Mode, Output
from tests.clusters import Processes, cluster, worker_pids
from tests.graph.steps import Nap, Text, TimedNap, naps


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, folder / "home") as running:
        yield running


@pytest.fixture(autouse=True)
def _home(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOK_HOME", str(processes.home))


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    """Where the naps of a test say that they have begun."""
    return tmp_path / "diary"


def run(
    processes: Processes, *steps: Step[Any], going_on: Callable[[], None] = lambda: None
) -> Outcomes:
    home = processes.home
    with (
        connected(processes.address, threads=1, fresh=False) as remote,
        Executor(
            Store(home / "store"),
            Output(Mode.QUIET),
            logs=home / "logs",
            remote=remote,
            going_on=going_on,
        ) as executor,
    ):
        return executor.run(steps)


def slept(diary: Path) -> Counter[str]:
    """How often each word's step has begun."""
    return Counter(line.split()[0] for line in diary.read_text().splitlines())


def until(condition: Callable[[], object], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_workers_make_what_is_not_timed_and_we_what_is(processes: Processes, diary: Path) -> None:
    below = tuple(Nap(f"under-{n}", diary) for n in range(4))
    top = Nap("top", diary, below=below)
    timed = TimedNap("timed", diary, below=(top,))
    outcomes = run(processes, timed)
    assert outcomes.result(timed) == Text("timed(top(under-0(),under-1(),under-2(),under-3()))")
    assert sorted(outcomes.ran) == sorted(s.label for s in (*below, top, timed))
    ran_by = dict(line.split() for line in diary.read_text().splitlines())
    assert ran_by.pop("timed") == str(os.getpid())
    assert str(os.getpid()) not in ran_by.values()
    assert len(ran_by) == 5
    assert run(processes, timed).ran == []


def test_what_a_step_fails_with_comes_back_whole(processes: Processes, diary: Path) -> None:
    bad = Nap("bad", diary, fails="itself")
    above, other = Nap("above", diary, below=(bad,)), Nap("other", diary)
    outcomes = run(processes, above, other)
    error = outcomes.failures[bad.key].error
    assert isinstance(error, StepError)
    assert (error.message, error.hint, error.log) == ("bad broke", "mend it", Path("broken.log"))
    assert outcomes.failures[above.key].blocked_by == "nap bad"
    assert outcomes.result(other) == Text("other()")


def test_a_resource_that_no_worker_has_is_refused_at_once(
    processes: Processes, diary: Path
) -> None:
    step = Nap("device", diary, needed=Needs(device=True))
    started = time.monotonic()
    with pytest.raises(PrerequisiteError, match="device needs device=1, and no worker") as caught:
        run(processes, step)
    assert time.monotonic() - started < 5
    line = f"dask worker {processes.address} --nthreads 1 --resources 'device=1'"
    assert line in (caught.value.hint or "")
    worker = processes.worker("device=1 memory=1000")
    try:
        assert run(processes, step).ran == ["nap device"]
        # Where any worker says how much memory it has, a step goes only where there is enough.
        with pytest.raises(PrerequisiteError, match="needs memory=1001"):
            run(processes, Nap("large", diary, needed=Needs(memory_bytes=1001)))
    finally:
        processes.stop(worker)


def test_two_clients_with_one_plan_run_each_step_once(processes: Processes, diary: Path) -> None:
    steps = [Nap(f"shared-{n}", diary, seconds=0.3) for n in range(6)]
    steps.append(Nap("shared-top", diary, below=tuple(steps)))
    with ThreadPoolExecutor() as clients:
        found = [clients.submit(run, processes, *steps) for _ in range(2)]
    assert [len(one.result().artifacts) for one in found] == [7, 7]
    assert set(slept(diary).values()) == {1}


def test_a_killed_worker_leaves_no_program_and_its_step_runs_again(
    processes: Processes, diary: Path
) -> None:
    step = Nap("killed", diary, seconds=3.0)
    with ThreadPoolExecutor() as client:
        found = client.submit(run, processes, step)
        until(naps, "never began")
        (orphan,) = naps()
        victim = int(diary.read_text().split()[1])
        assert victim in worker_pids(processes)
        os.kill(victim, signal.SIGKILL)
        until(lambda: orphan not in naps(), "its program runs on", 3)
    assert found.result().result(step) == Text("killed()")
    assert slept(diary) == {"killed": 2}
    assert naps() == []


def test_a_step_that_kills_its_workers_fails_by_its_name(processes: Processes, diary: Path) -> None:
    step = Nap("deadly", diary, fails="worker")
    error = run(processes, step).failures[step.key].error
    assert isinstance(error, StepError)
    assert error.message == "nap deadly: 4 workers died while running it"
    assert error.log.name.startswith("nap-deadly-")
    assert slept(diary) == {"deadly": 4}
    until(lambda: len(worker_pids(processes)) == 2, "nannies start workers again")


def test_a_client_that_leaves_takes_what_only_it_wanted(processes: Processes, diary: Path) -> None:
    """Ctrl-C at one client: its own step's program ends; what another wants goes on."""
    own, both = Nap("own", diary, seconds=30.0), Nap("both", diary, seconds=6.0)
    leaves = threading.Event()

    def going_on() -> None:
        if leaves.is_set():
            raise Interrupted("Ctrl-C")

    with ThreadPoolExecutor() as clients:
        one = clients.submit(run, processes, own, both, going_on=going_on)
        other = clients.submit(run, processes, both)
        until(lambda: len(naps()) == 2, "never began")
        time.sleep(2.0)  # so that both have asked for it
        leaves.set()
        assert isinstance(one.exception(), Interrupted)
        until(lambda: len(naps()) == 1, "the one that no client wants runs on", 8)
        assert other.result().result(both) == Text("both()")
    assert slept(diary) == {"own": 1, "both": 1}
    until(lambda: naps() == [], "left running")


def test_what_was_given_up_can_be_asked_for_again(processes: Processes, diary: Path) -> None:
    step = Nap("again", diary, seconds=4.0)

    def going_on() -> None:
        if naps():
            raise Interrupted("Ctrl-C")

    with pytest.raises(Interrupted):
        run(processes, step, going_on=going_on)
    assert run(processes, step).result(step) == Text("again()")


def test_another_home_is_refused_before_anything_runs(
    processes: Processes, tmp_path: Path, diary: Path
) -> None:
    worker = processes.worker(home=tmp_path / "other")
    try:
        with pytest.raises(PrerequisiteError, match="does not share this store: its COOK_HOME"):
            run(processes, Nap("elsewhere", diary))
    finally:
        processes.stop(worker)
    assert not diary.exists()


@pytest.mark.parametrize(("name", "program"), [("cook_version", "cook"), ("version", "dask")])
def test_other_versions_are_refused_before_anything_runs(
    processes: Processes, diary: Path, monkeypatch: pytest.MonkeyPatch, name: str, program: str
) -> None:
    monkeypatch.setattr(module, name, lambda *_: "0.0.1")
    with pytest.raises(PrerequisiteError, match=rf"runs {program} \S+, this is {program} 0.0.1"):
        run(processes, Nap("old", diary))
    assert not diary.exists()


def test_a_cluster_that_is_not_there_is_an_error(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = Processes(tmp_path, processes.home, "tcp://127.0.0.1:9")
    with pytest.raises(PrerequisiteError, match="no dask scheduler answers"):
        run(lonely)
    lonely.scheduler()
    try:
        with pytest.raises(PrerequisiteError, match="no worker is connected"):
            run(lonely)
    finally:
        lonely.close()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PrerequisiteError) as caught:
        run(processes)
    assert caught.value.hint == "pip install 'cook-gguf[cluster]'"
