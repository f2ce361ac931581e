"""What the server's log and the worker's say of one deployed model: the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.environment import default_threads
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir
from tests.engines.load_log import LoadedModel, read_load_log

TARGET, DRAFT = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"


def served_by(engine: Engine, job: ServerJob, supervisor: Supervisor) -> tuple[LoadedModel, ...]:
    """The models of a server, by its log."""
    with Server(engine, job, supervisor) as server:
        logs = (server.log.parent / name for name in ("stdout.log", "stderr.log"))
        return read_load_log("".join(log.read_text() for log in logs))


def loaded_by(engine: Engine, load: ModelLoad, supervisor: Supervisor) -> LoadedModel:
    """The model of a worker, by its log."""
    with Worker.open(engine, supervisor) as worker:
        worker.load(load)
        (loaded,) = read_load_log(worker.log.read_text(errors="replace"))
    return loaded


@pytest.mark.parametrize(
    ("args", "context"),
    [
        (ModelArgs(), 4096),
        (ModelArgs(threads=1, threads_batch=2, ubatch=256), 1000),
        (ModelArgs(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention=True), 2048),
        (ModelArgs(batch=32768, ubatch=1024, flash_attention=False), 4096),
        (ModelArgs(n_gpu_layers=0, override_tensor=("exps=CPU",), extra=("-nkvo",)), 512),
    ],
    ids=["defaults", "threads", "caches", "batches", "placement"],
)
def test_server_and_worker_run_a_model_alike(
    engine: Engine, args: ModelArgs, context: int, supervisor: Supervisor
) -> None:
    loud = ("-lv", "4") if engine.flavour is Flavour.LLAMA_CPP else ()
    job = ServerJob(TARGET, replace(args, extra=(*args.extra, *loud)), context)
    (served,) = served_by(engine, job, supervisor)
    assert {"ctx", "batch", "ubatch", "k", "v", "flash", "threads", "threads_batch"} <= set(served)
    load = model_load(engine, TARGET, args, context)
    threads = {"threads": load.threads, "threads_batch": load.threads_batch}
    assert loaded_by(engine, load, supervisor) | threads == served


def test_server_and_worker_write_alike_under_raw_flags(
    engine: Engine, supervisor: Supervisor
) -> None:
    prompt = "def parse_header(data):\n    "
    written = []
    for flags in ((), ("--rope-freq-base", "100")):
        args = ModelArgs(threads=1, extra=flags)
        with Server(engine, ServerJob(TARGET, args, 512), supervisor) as server:
            served = server.complete(prompt, 48, ignore_eos=True).text
        with Worker.open(engine, supervisor) as worker:
            worker.load(model_load(engine, TARGET, args, 512))
            said = worker.generate(worker.tokenize(prompt), n_predict=48, extra=48)
            written.append(worker.detokenize(said.tokens[:48], special=False))
        assert served.strip()
        assert written[-1] == served
    assert written[0] != written[1]


@pytest.mark.engine
def test_a_draft_runs_in_the_worker_as_with_its_target(
    bundled: Engine, supervisor: Supervisor
) -> None:
    target = ModelArgs(threads=1, ubatch=256, flash_attention=False, extra=("-lv", "4"))
    own = ModelArgs(cache_type_k="q8_0")
    job = ServerJob(TARGET, target, 2048, DRAFT, own, DraftSettings(4))
    _, served = served_by(bundled, job, supervisor)
    load = model_load(bundled, DRAFT, replace(own.as_draft_of(target), extra=()), 2048)
    assert loaded_by(bundled, load, supervisor) == served
    assert load.threads == 1


@pytest.mark.engine
def test_a_server_that_runs_otherwise_is_refused(
    bundled: Engine, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine decides on threads where no one sets them."""
    more = default_threads() + 1
    monkeypatch.setattr("cook.engines.base.default_threads", lambda: more)
    monkeypatch.setattr("cook.engines.arguments.engine_threads", lambda: more)
    refused = pytest.raises(StepError, match=f"{more - 1} threads, not {more}")
    with refused, Server(bundled, ServerJob(TARGET, ModelArgs(), 512), supervisor):
        pass
