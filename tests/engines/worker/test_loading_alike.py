"""What the server's log and the worker's say of one deployed model: the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.environment import default_threads
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir
from tests.engines.load_log import read_load_log


@pytest.mark.engine
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
    engine: Engine, args: ModelArgs, context: int, tmp_path: Path
) -> None:
    model = demo_dir() / "target-q8_0.gguf"
    supervisor = Supervisor(tmp_path / "logs")
    loud = ("-lv", "4") if engine.flavour is Flavour.LLAMA_CPP else ()
    job = ServerJob(model, replace(args, extra=(*args.extra, *loud)), context)
    with Server(engine, job, supervisor) as server:
        folder = server.log.parent
        said = "".join((folder / name).read_text() for name in ("stdout.log", "stderr.log"))
    (served,) = read_load_log(said)
    load = model_load(engine, model, args, context)
    with Worker.open(engine, supervisor) as worker:
        worker.load(load)
        (loaded,) = read_load_log(worker.log.read_text(errors="replace"))
    unknown = {name for name, value in vars(served).items() if value is None}
    assert unknown <= {"offloaded"}
    asked = replace(loaded, threads=load.threads, threads_batch=load.threads_batch)
    assert asked == served


@pytest.mark.engine
def test_server_and_worker_write_alike_under_raw_flags(engine: Engine, tmp_path: Path) -> None:
    model = demo_dir() / "target-q8_0.gguf"
    supervisor = Supervisor(tmp_path / "logs")
    prompt = "def parse_header(data):\n    "
    plain = ModelArgs(threads=1)
    flagged = ModelArgs(threads=1, extra=("--rope-freq-base", "100"))
    written = {}
    for args in (plain, flagged):
        job = ServerJob(model, args, 512)
        with Server(engine, job, supervisor) as server:
            served = server.complete(prompt, 48, ignore_eos=True).text
        with Worker.open(engine, supervisor) as worker:
            worker.load(model_load(engine, model, args, 512))
            said = worker.generate(worker.tokenize(prompt), n_predict=48, extra=48)
            written[args] = worker.detokenize(said.tokens[:48], special=False)
        assert served.strip()
        assert written[args] == served
    assert written[plain] != written[flagged]


@pytest.mark.engine
def test_a_draft_runs_in_the_worker_as_with_its_target(bundled: Engine, tmp_path: Path) -> None:
    target = ModelArgs(threads=1, ubatch=256, flash_attention=False, extra=("-lv", "4"))
    own = ModelArgs(cache_type_k="q8_0")
    models = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
    supervisor = Supervisor(tmp_path / "logs")
    job = ServerJob(models[0], target, 2048, models[1], own, DraftSettings(4))
    with Server(bundled, job, supervisor) as server:
        _, served = read_load_log(server.log.read_text())
    really = replace(own.as_draft_of(target), extra=())
    load = model_load(bundled, models[1], really, 2048)
    with Worker.open(bundled, supervisor) as worker:
        worker.load(load)
        (loaded,) = read_load_log(worker.log.read_text(errors="replace"))
    assert loaded == served
    assert load.threads == 1


@pytest.mark.engine
def test_a_server_that_runs_otherwise_is_refused(
    bundled: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine decides on threads where no one sets them."""
    import cook.engines.arguments
    import cook.engines.base

    more = default_threads() + 1
    monkeypatch.setattr(cook.engines.base, "default_threads", lambda: more)
    monkeypatch.setattr(cook.engines.arguments, "engine_threads", lambda: more)
    job = ServerJob(demo_dir() / "target-q8_0.gguf", ModelArgs(), 512)
    with (
        pytest.raises(StepError, match=f"{more - 1} threads, not {more}"),
        Server(bundled, job, Supervisor(tmp_path / "logs")),
    ):
        pass
