"""Weights are read once for all who want them, and give way to whoever needs their memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cook.engines.base import Engine
from cook.engines.worker import kept_workers
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.messages import ModelInfo, ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InternalError, Interrupted, StepError

pytestmark = pytest.mark.engine
PROMPT, REPLY = (1, 40, 50, 60, 61, 62), (70, 71, 72, 73)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[KeptWorkers]:
    with KeptWorkers(tmp_path / "logs") as workers:
        yield workers


@pytest.fixture
def target(tiny_model: Path) -> ModelLoad:
    return ModelLoad(tiny_model, context=256)


@pytest.fixture
def draft(tiny_draft: Path) -> ModelLoad:
    return ModelLoad(tiny_draft, context=256)


def alive(*pids: int) -> list[bool]:
    return [Path(f"/proc/{pid}").exists() for pid in pids]


def used(workers: KeptWorkers, engine: Engine, load: ModelLoad) -> int:
    """The process that had ``load`` for a moment, and waits now."""
    with workers.loaded(engine, load) as (worker, _):
        assert worker.tokenize("x")
    return worker.pid


def reads(folder: Path) -> int:
    """Times that a model file was opened by the workers that log below ``folder``, once no more
    comes: what a worker says is written down behind it."""
    before = -1
    while True:
        logs = (folder / "logs").glob("*/stderr.log")
        found = sum(log.read_text(errors="replace").count("loaded meta data with") for log in logs)
        if found == before:
            return found
        before = found
        time.sleep(0.3)


def test_one_model_is_read_once_whatever_its_contexts(
    workers: KeptWorkers, engine: Engine, target: ModelLoad, tmp_path: Path
) -> None:
    pids, said = set(), []
    for context in (256, 512, 256):
        with workers.loaded(engine, replace(target, context=context)) as (worker, info):
            assert info.context == context
            pids.add(worker.pid)
            said.append(worker.replay(PROMPT, REPLY).logq.tolist())
    assert len(pids) == 1
    assert reads(tmp_path) == 1
    assert said[0] == said[1] == said[2]


def test_what_changes_the_weights_is_another_model(
    workers: KeptWorkers, engine: Engine, target: ModelLoad, draft: ModelLoad, tmp_path: Path
) -> None:
    with workers.loaded(engine, target) as (first, _):
        # Both at once, as a live server has them.
        vocabulary = ModelLoad(target.path, vocabulary_only=True)
        assert len({first.pid, *(used(workers, engine, one) for one in (draft, vocabulary))}) == 3
    assert reads(tmp_path) == 3, "one has the vocabulary alone"


def test_those_that_wait_give_way_the_longest_first(
    workers: KeptWorkers,
    engine: Engine,
    target: ModelLoad,
    draft: ModelLoad,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids = [used(workers, engine, load) for load in (target, draft)]
    sizes = {load.path: load.path.stat().st_size for load in (target, draft)}
    monkeypatch.setattr(kept_workers, "anonymous_bytes", lambda _: 0)
    # A server of both: what they map lies in memory once.
    monkeypatch.setattr(workers, "_capacity", sum(sizes.values()) / kept_workers.FREE_SHARE)
    workers.make_room(sizes)
    assert alive(*pids) == [True, True]
    workers.make_room({target.path.with_name("another"): sizes[target.path]})
    assert alive(*pids) == [False, True]
    # Own memory, of caches and repacked weights, is shared with no one.
    monkeypatch.setattr(kept_workers, "anonymous_bytes", lambda _: sum(sizes.values()))
    workers.make_room({draft.path: sizes[draft.path]})
    assert alive(*pids) == [False, False]


def test_what_lies_on_a_device_gives_way_to_programs(
    workers: KeptWorkers, engine: Engine, target: ModelLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No build here has a device: what the library would log of one is put in its place."""
    pid = used(workers, engine, target)
    ((key, waiting),) = workers._waiting.items()
    monkeypatch.setitem(workers._waiting, key, replace(waiting, on_device=True))
    workers.make_room({})
    assert alive(pid) == [True]
    workers.make_room({}, devices=True)
    assert alive(pid) == [False]


def test_where_all_together_do_not_load_the_others_end(
    workers: KeptWorkers,
    engine: Engine,
    target: ModelLoad,
    draft: ModelLoad,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, load = used(workers, engine, target), KeptWorkers._load

    def full(self: KeptWorkers, worker: Worker, model: ModelLoad) -> ModelInfo:
        if alive(first) == [True]:
            raise StepError("the device is full")
        return load(self, worker, model)

    monkeypatch.setattr(KeptWorkers, "_load", full)
    assert used(workers, engine, draft) != first
    assert alive(first) == [False]


def test_one_that_died_while_it_waited_is_started_again(
    workers: KeptWorkers, engine: Engine, target: ModelLoad
) -> None:
    first = used(workers, engine, target)
    os.kill(first, signal.SIGKILL)
    assert used(workers, engine, target) != first


def test_one_that_broke_is_not_kept(
    workers: KeptWorkers, engine: Engine, target: ModelLoad, tmp_path: Path
) -> None:
    with (
        pytest.raises(StepError, match="no answer in time"),
        workers.loaded(engine, target, timeout_s=0.0) as (broken, _),
    ):
        broken.replay(PROMPT, REPLY)
    with workers.loaded(engine, target) as (second, _):
        assert second.pid != broken.pid
        assert second.timeout_s > 0
    with (
        pytest.raises(StepError, match="do not fit the context"),
        workers.loaded(engine, target) as (asked, _),
    ):
        asked.replay(PROMPT * 60, REPLY)
    assert reads(tmp_path) == 2
    assert alive(asked.pid) == [False]


def test_a_worker_without_a_model_is_kept_too(workers: KeptWorkers, engine: Engine) -> None:
    with workers.unloaded(engine) as first:
        pass
    with pytest.raises(InternalError), workers.unloaded(engine) as failed:
        raise InternalError("the step failed")
    assert failed.pid == first.pid
    assert alive(failed.pid) == [False]
    with workers.unloaded(engine) as killed:
        assert killed.pid != failed.pid
    os.kill(killed.pid, signal.SIGKILL)
    while alive(killed.pid) == [True]:
        time.sleep(0.01)
    with workers.unloaded(engine) as third, workers.unloaded(engine) as fourth:
        assert len({killed.pid, third.pid, fourth.pid}) == 3
    assert alive(third.pid, fourth.pid).count(True) == 1
    workers.close()
    assert alive(third.pid, fourth.pid) == [False, False]


def test_no_worker_outlives_the_end(engine: Engine, target: ModelLoad, tmp_path: Path) -> None:
    with KeptWorkers(tmp_path / "logs") as workers:
        pid = used(workers, engine, target)
    assert alive(pid) == [False]
    workers.cancel()
    with pytest.raises(Interrupted), workers.loaded(engine, target):
        pass
