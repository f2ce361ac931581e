"""What the server's log and the worker's say of one deployed model: the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, Engine, ModelArgs, ServerJob
from cook.engines.load_log import LoadedModel, contradictions, read_load_log
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server
from cook.engines.threads import default_threads
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker
from cook.errors import StepError
from cook.formats.quant_types import Flavour
from cook.paths import demo_dir

MAINLINE = """\
cmn  common_param: system_info: n_threads = 6 (n_threads_batch = 8) / 16 | CPU : SSE3 = 1 |
load_tensors: offloaded 6/6 layers to GPU
llama_context: n_ctx                 = 512
llama_context: n_ctx_seq             = 512
llama_context: n_batch               = 300
llama_context: n_ubatch              = 128
llama_context: flash_attn            = auto
llama_kv_cache: size =    1.25 MiB (512 cells), K (q8_0):    0.62 MiB, V (f16):    0.62 MiB
resolve_fused_ops: Flash Attention enabled
cmn          init: llama threadpool init, n_threads = 6
load_tensors: offloaded 0/3 layers to GPU
llama_context: n_ctx                 = 512
llama_context: n_batch               = 512
llama_context: n_ubatch              = 512
llama_context: flash_attn            = disabled
llama_kv_cache: size =    0.50 MiB (512 cells), K (f16):    0.25 MiB, V (f16):    0.25 MiB
srv    load_model: initializing, n_slots = 1, n_ctx_slot = 512, kv_unified = 'false'
"""
IK = """\
INFO [                    main] system info | n_threads=2 n_threads_batch=-1 system_info="AVX = 1"
llm_load_tensors: offloaded 0/25 layers to GPU
llama_init_from_model: n_ctx         = 4096
llama_init_from_model: n_batch       = 2048
llama_init_from_model: n_ubatch      = 512
llama_init_from_model: flash_attn    = 1
llama_init_from_model: KV self size  =   24.00 MiB, K (f16):   12.00 MiB, V (f16):   12.00 MiB
"""


def test_every_model_of_a_log_is_read() -> None:
    target, draft = read_load_log(MAINLINE)
    assert target == LoadedModel(512, 300, 128, "q8_0", "f16", 6, True, 6, 8)
    assert draft == LoadedModel(512, 512, 512, "f16", "f16", 0, False)
    assert read_load_log(IK) == (LoadedModel(4096, 2048, 512, "f16", "f16", 0, True, 2, 2),)


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        ("load_tensors:   CPU_Mapped model buffer size =    24.66 MiB\n", set()),
        ("llama_context:        CPU  output buffer size =     0.01 MiB\n", set()),
        (
            "load_tensors:        CUDA0 model buffer size =  3577.56 MiB\n"
            "llama_kv_cache:      CUDA1 KV buffer size =   256.00 MiB\n"
            "sched_reserve:  CUDA_Host compute buffer size =    16.01 MiB\n",
            {"CUDA0", "CUDA1"},
        ),
        (
            "llm_load_tensors:        CPU buffer size =   205.00 MiB\n"
            "llm_load_tensors:  CUDA_Host buffer size =   205.00 MiB\n"
            "llm_load_tensors:      CUDA0 buffer size =  8620.70 MiB\n",
            {"CUDA0"},
        ),
    ],
)
def test_accelerators_are_known_by_their_buffers(lines: str, devices: set[str]) -> None:
    """A build without any says that layers are offloaded all the same."""
    (model,) = read_load_log("load_tensors: offloaded 6/6 layers to GPU\n" + lines)
    assert model.devices == devices


def test_a_terse_log_gives_what_it_has() -> None:
    terse = (
        "cmn init: llama threadpool init, n_threads = 2\nsrv: n_slots = 1, n_ctx_slot = 512, x\n"
    )
    assert read_load_log(terse) == (LoadedModel(context=512, threads=2),)
    assert read_load_log("") == (LoadedModel(),)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context": 256}, "a context of 256 tokens, not 300"),
        ({"batch": 2048}, "batches of 2048 tokens, not 300"),
        ({"ubatch": 64}, "physical batches of 64 tokens, not 128"),
        ({"threads": 5}, "5 threads, not 6"),
        ({"threads_batch": 6}, "6 threads for batches, not 8"),
    ],
)
def test_what_is_not_as_described_is_reported(changed: dict[str, Any], message: str) -> None:
    args = ModelArgs(threads=6, threads_batch=8, ubatch=128)
    target, _ = read_load_log(MAINLINE)
    assert not list(contradictions(target, args, 300))
    assert list(contradictions(replace(target, **changed), args, 300)) == [message]


def test_a_batch_below_the_mask_s_padding_may_be_enlarged() -> None:
    args = ModelArgs(threads=1, batch=8)
    assert not list(contradictions(LoadedModel(512, 64, 64, threads=1), args, 512))
    assert not list(contradictions(LoadedModel(512, 8, 8, threads=1), args, 512))
    assert list(contradictions(LoadedModel(512, 512, 64), args, 512))


@pytest.fixture(scope="module", params=["bundled", pytest.param("ik_engine", marks=pytest.mark.ik)])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.mark.engine
@pytest.mark.parametrize(
    ("args", "context"),
    [
        (ModelArgs(), 4096),
        (ModelArgs(threads=1, threads_batch=2, ubatch=256), 1000),
        (ModelArgs(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention=True), 2048),
        (ModelArgs(batch=32768, ubatch=1024, flash_attention=False), 16384),
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
    with Worker.open(engine, supervisor) as worker:
        loaded = worker.load(model_load(engine, model, args, context)).running
    unknown = {name for name, value in vars(served).items() if value is None}
    assert unknown <= {"offloaded"}
    assert loaded == served


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
    with Worker.open(bundled, supervisor) as worker:
        loaded = worker.load(model_load(bundled, models[1], really, 2048)).running
    assert replace(loaded, threads=None, threads_batch=None) == served
    assert loaded.threads == 1


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


def test_an_engine_that_may_not_use_every_core_gets_its_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, standin_engine: Callable[..., Any]
) -> None:
    import cook.engines.arguments
    import cook.engines.base

    engine = standin_engine("silent", "server")
    monkeypatch.setattr(cook.engines.base, "default_threads", lambda: 8)
    monkeypatch.setattr(cook.engines.arguments, "engine_threads", lambda: 8)
    job = ServerJob(tmp_path / "t.gguf", ModelArgs(), 512)
    assert "--threads" not in engine.server_command(job, 1, None)
    monkeypatch.setattr(cook.engines.base, "default_threads", lambda: 3)
    words = engine.server_command(job, 1, None)
    assert words[words.index("--threads") + 1] == "3"
