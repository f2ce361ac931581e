"""The live server: real ones on tiny models, and stand-ins that misbehave."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines.base import DraftSettings, ModelArgs, ServerJob, contradictions
from cook.engines.process.supervisor import Supervisor
from cook.engines.server import Server, logged_settings
from cook.errors import InternalError, PrerequisiteError, StepError
from cook.paths import demo_dir

Make = Callable[..., Any]
ONE = ModelArgs(threads=1)


def job(target: Path, draft: Path | None = None, **more: Any) -> ServerJob:
    settings = DraftSettings(4) if draft else None
    return ServerJob(target, ONE, 512, draft, ONE, settings, **more)


@pytest.fixture
def serving(supervisor: Supervisor, tiny_model: Path) -> Make:
    """``serving(engine, draft=..., target=...)``: a server of the tiny model, or of another."""

    def make(
        engine: Any, draft: Path | None = None, target: Path | None = None, **more: Any
    ) -> Server:
        return Server(engine, job(target or tiny_model, draft), supervisor, **more)

    return make


@pytest.mark.engine
def test_plain_server(bundled: Any, serving: Make) -> None:
    with serving(bundled) as server:
        tokens = server.tokenize("hello there")
        assert server.detokenize(tokens).replace("\u2581", " ").strip() == "hello there"
        first = server.complete(tokens, 12, n_probs=3, ignore_eos=True)
        again = server.complete(tokens, 12, ignore_eos=True)
        assert server.peak_rss_bytes > 1 << 20
    assert first.tokens == again.tokens
    assert len(first.tokens) == first.predicted_n == 12
    assert first.prompt_n == len(tokens)
    assert first.stop == "limit"
    assert first.draft_n is None
    assert [p.id for p in first.probabilities] == list(first.tokens)
    assert all(len(p.top_logprobs) == 3 and p.logprob <= 0 for p in first.probabilities)
    assert first.decode_tokens_per_s is not None
    assert server.result.returncode == 0
    assert server.result.peak_rss_bytes > 1 << 20


@pytest.mark.engine
def test_drafting_server(bundled: Any, serving: Make, tiny_model: Path, tiny_draft: Path) -> None:
    answers = []
    for draft in (None, tiny_model, tiny_draft):
        with serving(bundled, draft) as server:
            answers.append(server.complete("once more", 24, ignore_eos=True))
            if draft is not None:
                with pytest.raises(InternalError, match="probabilities"):
                    server.complete("x", 4, n_probs=2)
    plain, same, bad = answers
    assert plain.tokens == same.tokens == bad.tokens
    assert 16 <= same.draft_n == same.draft_n_accepted
    assert bad.draft_n_accepted < bad.draft_n


def test_vocabulary_mismatch_is_no_drafting(
    engine: Any, serving: Make, tmp_path: Path, make_tiny_model: Make
) -> None:
    other = make_tiny_model(tmp_path / "other.gguf", layers=1, vocabulary="zz")
    with pytest.raises(StepError, match="serves without drafting"), serving(engine, other):
        pass


@pytest.mark.engine
def test_a_broken_model_is_reported_with_the_log(
    bundled: Any, serving: Make, tiny_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model.read_bytes()[:50_000])
    refused = pytest.raises(StepError, match="ended before it was ready")
    with refused as caught, serving(bundled, target=broken):
        pass
    assert caught.value.log is not None


@pytest.mark.ik
def test_ik_server(ik_engine: Any, serving: Make, tiny_model: Path) -> None:
    with serving(ik_engine) as server:
        plain = server.complete("hello there", 16, ignore_eos=True)
    with serving(ik_engine, tiny_model) as server:
        drafted = server.complete("hello there", 16, ignore_eos=True)
        with pytest.raises(InternalError, match="twice in a row"):
            server.complete("hello there", 16, ignore_eos=True)
        server.complete("something else", 2)
        server.complete("hello there", 16, ignore_eos=True)
    # ik leaves the last draft's tokens out of the text when the limit falls into it.
    assert plain.text.startswith(drafted.text)
    assert drafted.predicted_n == 16
    assert plain.tokens is None
    assert drafted.draft_n == drafted.draft_n_accepted
    assert drafted.draft_n is not None
    assert drafted.by_depth[0].depth == 1
    assert sum(d.accepted for d in drafted.by_depth) == drafted.draft_n_accepted


@pytest.fixture
def drafting(supervisor: Supervisor) -> Make:
    """``drafting(engine, threads, context)``: a server of the demo's pair."""

    def server(engine: Any, threads: int, context: int) -> Server:
        args = ModelArgs(threads=threads)
        models = demo_dir() / "target-q8_0.gguf", demo_dir() / "draft-f16.gguf"
        wanted = ServerJob(models[0], args, context, models[1], args, DraftSettings(3))
        return Server(engine, wanted, supervisor)

    return server


@pytest.mark.ik
def test_a_streamed_answer_of_ik_shows_when_its_draft_read_the_prompt(
    ik_engine: Any, drafting: Make
) -> None:
    texts = "Once upon a time", "def add(a, b):\n    return a + b\n\n\n" * 90
    with drafting(ik_engine, 1, 2048) as server:
        whole, streamed = (
            [server.complete(text, 48, seed=1, streamed=stream) for text in texts]
            for stream in (False, True)
        )
    for as_whole, as_stream in zip(whole, streamed, strict=True):
        assert as_whole.text.startswith(as_stream.text)
        assert len(as_stream.text) > 0.8 * len(as_whole.text)
        for name in ("draft_n", "draft_n_accepted", "predicted_n"):
            assert getattr(as_stream, name) == getattr(as_whole, name)
        assert as_whole.late_reading_ms is None
        # How long it is, is right of slow servers alone (tests/engines/test_server_api.py).
        assert as_stream.late_reading_ms is not None
        assert as_stream.late_reading_ms < as_stream.predicted_ms


@pytest.mark.ik
def test_a_request_after_a_stream_finds_ik_there(ik_engine: Any, drafting: Make) -> None:
    """It ends its connection after a stream without a word, which the next request ran into."""
    with drafting(ik_engine, 2, 1024) as server:
        for number in range(20):
            assert server.complete(f"{number} is unrelated", 4).predicted_n == 4
            asked = f"def f{number}(a, b):\n    return"
            assert server.complete(asked, 200, streamed=True, ignore_eos=True).predicted_n == 200


ANSWERS = {
    "dies": r"crashed with SIGABRT.*GGML_ASSERT\(n_tokens > 0\).*died during a request",
    "exits_cleanly": "died during a request",
    "never_answers": "a request was not answered",
    "error_status": r"status 400: the context  ?is full",
    "no_json": "no JSON object",
    "more_accepted": "4 tokens accepted of 3 drafted",
    "too_many": "10000 tokens for the 8 asked for",
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_hostile_answers(fault: str, standin_engine: Make, serving: Make) -> None:
    engine = standin_engine(f"server-{fault}", "server")
    with (
        serving(engine, stall_timeout_s=1.0) as server,
        pytest.raises(StepError, match=ANSWERS[fault]) as caught,
    ):
        server.complete("hello", 8)
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("server-never_ready", "still loading"),
        ("server-no_drafting", "serves without drafting.*vocabs are not compatible"),
        ("server-cut_context", "runs with a context of 128 tokens, not 512"),
        ("server-other_threads", "runs with 77 threads, not 1"),
        ("error_without_text", "exit status 1.*ended before it was ready"),
        ("segfault", "SIGSEGV.*ended before it was ready"),
        ("silent", "ended before it was ready"),
        ("out_of_memory", "ran out of memory"),
    ],
)
def test_servers_that_do_not_serve(
    fault: str, message: str, standin_engine: Make, serving: Make, tiny_draft: Path
) -> None:
    engine = standin_engine(fault, "server")
    refused = pytest.raises(StepError, match=message)
    with refused, serving(engine, tiny_draft, load_timeout_s=1.5):
        pass


@pytest.mark.engine
def test_a_taken_port_is_tried_again(bundled: Any, standin_engine: Make, serving: Make) -> None:
    engine = standin_engine("port_taken", "server", real=bundled.facts.bin_dir)
    with serving(engine) as server:
        assert server.complete("x", 2, ignore_eos=True).predicted_n == 2


def test_the_key_is_in_a_private_file_only(
    standin_engine: Make, serving: Make, tmp_path: Path
) -> None:
    engine = standin_engine("server-ok", "server")
    seen: list[tuple[str, int]] = []
    original = engine.server_command

    def spy(given: ServerJob, port: int, key_file: Path) -> Any:
        seen.append((key_file.read_text().strip(), stat.S_IMODE(key_file.stat().st_mode)))
        return original(given, port, key_file)

    engine.server_command = spy
    with serving(engine) as server:
        ((key, mode),) = seen
        assert len(key) >= 32
        assert mode == 0o600
        assert not Path(server.command[server.command.index("--api-key-file") + 1]).exists()
    for path in (tmp_path / "logs").rglob("*"):
        assert path.is_dir() or key not in path.read_text(errors="replace")


def words(engine: Any, given: ServerJob) -> str:
    return " ".join(engine.server_command(given, 4321, Path("/run/key"))[1:])


@pytest.fixture(params=["llama.cpp", "ik_llama.cpp"])
def standin(request: pytest.FixtureRequest, standin_engine: Make) -> Any:
    """One of each flavour."""
    return standin_engine("silent", "server", flavour=request.param)


def test_a_server_without_a_flag_for_speculation_is_refused(standin: Any, tiny_model: Path) -> None:
    server = tuple(flag for flag in standin.facts.flags["server"] if flag != "--spec-type")
    facts = replace(standin.facts, flags={**standin.facts.flags, "server": server})
    with pytest.raises(PrerequisiteError, match="has no --spec-type"):
        words(type(standin)("old", facts), job(tiny_model, tiny_model))


def test_without_draft_there_is_no_speculation(standin: Any, tmp_path: Path) -> None:
    command = standin.server_command(job(tmp_path / "t"), 1, None)
    assert not [word for word in command if "spec" in word or "-draft" in word]


FULL = ModelArgs(
    n_gpu_layers=99,
    n_cpu_moe=3,
    devices=("CUDA0", "CUDA1"),
    cache_type_k="q8_0",
    cache_type_v="q8_0",
    threads=6,
    threads_batch=7,
)
OVERRIDES = ("exps=CPU", "a=b")


def test_mainline_command(standin_engine: Make, tmp_path: Path) -> None:
    """The draft's arguments, one by one: tests/engines/test_arguments.py."""
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    full = replace(FULL, override_tensor=OVERRIDES, flash_attention=True, extra=("--mlock",))
    given = ServerJob(target, full, 4096, draft, FULL, DraftSettings(8, 2, 0.75))
    text = words(standin_engine("silent", "server"), given)
    for part in (
        f"--model {target} --host 127.0.0.1 --port 4321 --api-key-file /run/key --parallel 1",
        "--ctx-size 4096",
        "--n-gpu-layers 99 --override-tensor exps=CPU --override-tensor a=b --n-cpu-moe 3",
        "--device CUDA0,CUDA1 --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on",
        "--threads 6 --threads-batch 7",
        "--fit off",
        f"--spec-draft-model {draft} --spec-type draft-simple --spec-draft-n-max 8",
        "--spec-draft-n-min 2 --spec-draft-p-min 0.75 --spec-draft-ngl 99",
    ):
        assert part in text, (part, text)
    assert text.endswith("--mlock")


def test_ik_command(standin_engine: Make, tmp_path: Path) -> None:
    engine, draft = standin_engine(flavour="ik_llama.cpp"), tmp_path / "d.gguf"
    mine = replace(FULL, override_tensor=OVERRIDES, flash_attention=False, ubatch=64)
    text = words(engine, ServerJob(tmp_path / "t", FULL, 4096, draft, mine, DraftSettings(8)))
    assert "--parallel 1 --ctx-size 4096" in text
    assert f"--model-draft {draft} --spec-type draft:n_max=8,n_min=0,p_min=0" in text
    inner = "-ot exps=CPU -ot a=b -ncmoe 3 -t 6 -tb 7 -b 4096 -ub 64 -fa off"
    assert f"--draft-params {inner}" in text


MAINLINE = """\
cmn  common_param: system_info: n_threads = 6 (n_threads_batch = 8) / 16 | CPU : SSE3 = 1 |
llama_context: n_ctx                 = 512
llama_context: n_ctx_seq             = 512
llama_context: n_batch               = 300
llama_context: n_ubatch              = 128
cmn          init: llama threadpool init, n_threads = 6
llama_context: n_ctx                 = 512
llama_context: n_batch               = 512
llama_context: n_ubatch              = 512
srv    load_model: initializing, n_slots = 1, n_ctx_slot = 512, kv_unified = 'false'
"""
IK = """\
INFO [                    main] system info | n_threads=2 n_threads_batch=-1 system_info="AVX = 1"
llama_init_from_model: n_ctx         = 4096
llama_init_from_model: n_batch       = 2048
llama_init_from_model: n_ubatch      = 512
"""
TERSE = "cmn init: llama threadpool init, n_threads = 2\nsrv: n_slots = 1, n_ctx_slot = 512, x\n"
THREADS = {"threads": 6, "threads_batch": 8}


@pytest.mark.parametrize(
    ("log", "settings"),
    [
        (MAINLINE, {"ctx": 512, "seq": 512, "batch": 300, "ubatch": 128, **THREADS}),
        (IK, {"ctx": 4096, "batch": 2048, "ubatch": 512, "threads": 2, "threads_batch": 2}),
        (TERSE, {"seq": 512, "threads": 2}),
        ("", {}),
    ],
    ids=["mainline", "ik", "terse", "none"],
)
def test_a_log_says_how_its_target_runs(log: str, settings: dict[str, int]) -> None:
    assert logged_settings(log) == settings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seq": 256}, "a context of 256 tokens, not 300"),
        ({"batch": 2048}, "batches of 2048 tokens, not 300"),
        ({"ubatch": 64}, "physical batches of 64 tokens, not 128"),
        ({"threads": 5}, "5 threads, not 6"),
        ({"threads_batch": 6}, "6 threads for batches, not 8"),
    ],
)
def test_what_is_not_as_described_is_reported(changed: dict[str, int], message: str) -> None:
    asked = {"ctx": 300, "batch": 2048, "ubatch": 128, **THREADS}
    ran = logged_settings(MAINLINE)
    assert not list(contradictions(ran, asked))
    assert list(contradictions(ran | changed, asked)) == [message]


def test_a_batch_below_the_mask_s_padding_may_be_enlarged() -> None:
    asked = {"ctx": 512, "batch": 8, "ubatch": 512, "threads": 1, "threads_batch": 1}
    assert not list(contradictions({"ctx": 512, "batch": 64, "ubatch": 64}, asked))
    assert not list(contradictions({"ctx": 512, "batch": 8, "ubatch": 8}, asked))
    assert list(contradictions({"ctx": 512, "batch": 512, "ubatch": 64}, asked))
