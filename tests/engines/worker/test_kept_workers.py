"""Weights are read once for all who want them, and give way to whoever needs their memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cook.engines.base import Engine
from cook.engines.worker import kept_workers
from cook.engines.worker.kept_workers import KeptWorkers
from cook.engines.worker.messages import ModelLoad
from cook.errors import InternalError, Interrupted, StepError

pytestmark = pytest.mark.engine
PROMPT, REPLY = (1, 40, 50, 60, 61, 62), (70, 71, 72, 73)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[KeptWorkers]:
    with KeptWorkers(tmp_path / "logs") as workers:
        yield workers


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


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
    workers: KeptWorkers, engine: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    pids, said = set(), []
    for context in (256, 512, 256):
        with workers.loaded(engine, ModelLoad(tiny_model, context=context)) as (worker, info):
            assert info.context == context
            pids.add(worker.pid)
            said.append(worker.replay(PROMPT, REPLY).logq.tolist())
    assert len(pids) == 1
    assert reads(tmp_path) == 1
    assert said[0] == said[1] == said[2]


def test_what_changes_the_weights_is_another_model(
    workers: KeptWorkers, engine: Engine, tiny_model: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    with workers.loaded(engine, ModelLoad(tiny_model, context=256)) as (target, _):
        # Both at once, as a live server has them.
        with workers.loaded(engine, ModelLoad(tiny_draft, context=256)) as (draft, _):
            assert target.pid != draft.pid
        with workers.loaded(engine, ModelLoad(tiny_model, vocabulary_only=True)) as (other, _):
            assert other.pid != target.pid
    assert reads(tmp_path) == 3, "one has the vocabulary alone"


def test_those_that_wait_give_way_the_longest_first(
    workers: KeptWorkers,
    engine: Engine,
    tiny_model: Path,
    tiny_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pids = []
    for path in (tiny_model, tiny_draft):
        with workers.loaded(engine, ModelLoad(path, context=256)) as (worker, _):
            pids.append(worker.pid)
    sizes = {path: path.stat().st_size for path in (tiny_model, tiny_draft)}
    monkeypatch.setattr(kept_workers, "anonymous_bytes", lambda _: 0)
    # A server of both: what they map lies in memory once.
    monkeypatch.setattr(workers, "_capacity", sum(sizes.values()) / kept_workers.FREE_SHARE)
    workers.make_room(sizes)
    assert [alive(pid) for pid in pids] == [True, True]
    workers.make_room({tiny_model.with_name("another"): sizes[tiny_model]})
    assert [alive(pid) for pid in pids] == [False, True]
    # Own memory, of caches and repacked weights, is shared with no one.
    monkeypatch.setattr(kept_workers, "anonymous_bytes", lambda _: sum(sizes.values()))
    workers.make_room({tiny_draft: sizes[tiny_draft]})
    assert [alive(pid) for pid in pids] == [False, False]


def test_what_lies_on_a_device_gives_way_to_programs(
    workers: KeptWorkers, engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No build here has a device: what the library would log of one is put in its place."""
    with workers.loaded(engine, ModelLoad(tiny_model, context=256)) as (worker, _):
        pass
    ((key, waiting),) = workers._waiting.items()
    on_device = kept_workers._Kept(waiting.worker, waiting.path, waiting.file_bytes, on_device=True)
    monkeypatch.setitem(workers._waiting, key, on_device)
    workers.make_room({})
    assert alive(worker.pid)
    workers.make_room({}, devices=True)
    assert not alive(worker.pid)


def test_where_all_together_do_not_load_the_others_end(
    workers: KeptWorkers,
    engine: Engine,
    tiny_model: Path,
    tiny_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with workers.loaded(engine, ModelLoad(tiny_model, context=256)) as (first, _):
        pass
    load = KeptWorkers._load

    def full(self: KeptWorkers, worker: object, model: ModelLoad) -> object:
        if alive(first.pid):
            raise StepError("the device is full")
        return load(self, worker, model)  # type: ignore[arg-type]

    monkeypatch.setattr(KeptWorkers, "_load", full)
    with workers.loaded(engine, ModelLoad(tiny_draft, context=256)) as (second, _):
        assert second.tokenize("x")
    assert not alive(first.pid)


def test_one_that_broke_is_not_kept(
    workers: KeptWorkers, engine: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    load = ModelLoad(tiny_model, context=256)
    with (
        pytest.raises(StepError, match="no answer in time"),
        workers.loaded(engine, load, timeout_s=0.0) as (broken, _),
    ):
        broken.replay(PROMPT, REPLY)
    with workers.loaded(engine, load) as (second, _):
        assert second.pid != broken.pid
        assert second.timeout_s > 0
    with (
        pytest.raises(StepError, match="do not fit the context"),
        workers.loaded(engine, load) as (asked, _),
    ):
        asked.replay(PROMPT * 60, REPLY)
    assert reads(tmp_path) == 2
    assert not alive(asked.pid)


def test_a_worker_without_a_model_is_kept_too(workers: KeptWorkers, engine: Engine) -> None:
    with workers.unloaded(engine) as first:
        pass
    with workers.unloaded(engine) as second:
        assert second.pid == first.pid
    with pytest.raises(InternalError), workers.unloaded(engine) as failed:
        raise InternalError("the step failed")
    assert failed.pid == first.pid
    assert not alive(failed.pid)
    with workers.unloaded(engine) as killed:
        assert killed.pid != failed.pid
    os.kill(killed.pid, signal.SIGKILL)
    while alive(killed.pid):
        time.sleep(0.01)
    with workers.unloaded(engine) as third, workers.unloaded(engine) as fourth:
        assert len({killed.pid, third.pid, fourth.pid}) == 3
    assert [alive(third.pid), alive(fourth.pid)].count(True) == 1
    workers.close()
    assert not alive(third.pid)
    assert not alive(fourth.pid)


def test_no_worker_outlives_the_end(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    with (
        KeptWorkers(tmp_path / "logs") as workers,
        workers.loaded(engine, ModelLoad(tiny_model, context=256)) as (worker, _),
    ):
        pass
    assert not alive(worker.pid)
    workers.cancel()
    with pytest.raises(Interrupted), workers.loaded(engine, ModelLoad(tiny_model)):
        pass
