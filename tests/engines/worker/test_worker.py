"""The worker on real engines: reductions against numpy, replay against generation, failures.

The same tests run on an ik_llama.cpp build where COOK_ENGINE_IK names one.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cook.engines import tool_runs
from cook.engines.base import DraftSettings, Engine, ModelArgs, QuantizeJob, TypeRule
from cook.engines.environment import engine_environment
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker import compile
from cook.engines.worker.compile import EngineFiles, build_worker, locate
from cook.engines.worker.loading import model_load
from cook.engines.worker.messages import LibraryParameter, ModelInfo, ModelLoad
from cook.engines.worker.worker import Worker
from cook.errors import InternalError, PrerequisiteError, StepError
from cook.formats.gguf import read_gguf
from cook.formats.quant_types import Flavour
from cook.formats.sampling import Sampling
from cook.scoring.simulate import Profile, positions_of, simulate
from tests.engines.load_log import LoadedModel, read_load_log

pytestmark = pytest.mark.engine

PROMPT = (1, 40, 50, 60, 61, 62)
PLAIN = ModelArgs(threads=1)
Load = Callable[..., ModelInfo]
Start = Callable[[], Worker]


@pytest.fixture(scope="module")
def start(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Start:
    supervisor = Supervisor(tmp_path_factory.mktemp("logs"))
    return lambda: Worker.open(engine, supervisor)


@pytest.fixture(scope="module")
def worker(start: Start) -> Iterator[Worker]:
    with start() as one:
        yield one


@pytest.fixture
def target(worker: Worker, tiny_model: Path) -> Worker:
    worker.load(ModelLoad(tiny_model, context=512))
    return worker


@pytest.fixture(scope="module")
def noisy_draft(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with noise on its weights: it agrees with it about half of the time."""
    import gguf

    path = tmp_path_factory.mktemp("draft") / "noisy.gguf"
    shutil.copy(tiny_model, path)
    rng = np.random.default_rng(3)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.data.dtype == np.float16:
            noise = 1 + 0.1 * rng.standard_normal(tensor.data.shape)
            tensor.data[...] = (tensor.data.astype(np.float32) * noise).astype(np.float16)
    return path


@pytest.fixture
def loaded(engine: Engine, worker: Worker, tiny_model: Path) -> Load:
    """``loaded(context, carry=..., args of the model)``: the tiny model as its server runs it."""

    def load(context: int, args: ModelArgs = PLAIN, carry: bool = False, **more: Any) -> ModelInfo:
        return worker.load(model_load(engine, tiny_model, args, context, **more), carry=carry)

    return load


def random_text(size: int | tuple[int, int], seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(3, 320, size)


def reduce(worker: Worker, row: Any, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    array = np.asarray(row, "<f4")
    return worker._request("selftest", {"row": array}, **fields)


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 1023, 1024, 1025, 4097, 150_000])
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
def test_reductions_equal_numpy(worker: Worker, size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    row = (rng.standard_normal(size) * scale + 5).astype(np.float32)
    if size > 20:
        row[7] = -np.inf
    token = int(rng.integers(size))
    top = min(64, size)
    head, got = reduce(worker, row, token=token, top=top, inverse_temperature=1.25)
    x = row.astype(np.float64)
    order = np.lexsort((np.arange(size), -x))
    shifted = np.exp(x - x.max())
    p = shifted / shifted.sum()
    lse = x.max() + np.log(shifted.sum())
    finite = p > 0
    entropy = -(p[finite] * np.log(p[finite])).sum()
    scaled = np.exp((x - x.max()) * 1.25).sum()
    ten = np.exp(x[order[:10]] - x.max()).sum()
    assert (head["argmax"], head["bad"]) == (order[0], 0)
    assert head["rank"] == int((row > row[token]).sum())
    second = x[order[1]] if size > 1 else x[order[0]]
    values = [x.max(), second, 1 / ten, lse, x.max() * 1.25 + np.log(scaled), entropy]
    assert got["values"] == pytest.approx(values, rel=2e-6, abs=2e-6)
    assert got["top_ids"].tolist() == order[:top].tolist()
    assert np.array_equal(got["top_logits"], row[order[:top]])


def test_exponential_is_accurate(worker: Worker) -> None:
    row = np.linspace(-87, 0, 200_001, dtype=np.float32)
    exact = np.exp(row.astype(np.float64))
    assert np.abs(reduce(worker, row)[1]["exp"] / exact - 1).max() < 5e-7


def test_equal_logits_give_the_lowest_ids(worker: Worker) -> None:
    row = np.zeros(3000, np.float32)
    row[[5, 1500, 2999]] = 2.0
    head, got = reduce(worker, row, top=5)
    assert head["argmax"] == 5
    assert got["top_ids"].tolist() == [5, 1500, 2999, 0, 1]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 1023, 1500])
def test_what_is_no_number_is_seen(worker: Worker, poison: float, at: int) -> None:
    row = np.zeros(2000, np.float32)
    row[at] = poison
    assert reduce(worker, row)[0]["bad"] == 1


def test_model_facts_and_text(target: Worker, tiny_model: Path) -> None:
    info = target.load(ModelLoad(tiny_model, context=512, threads=1))
    assert (info.n_vocab, info.bos, info.eog) == (320, 1, frozenset({2}))
    assert info.add_bos
    ids = target.tokenize("hello wörld \N{SNOWMAN}")
    assert ids[0] == 1
    # this vocabulary has no token for the space mark, so its bytes come back
    text = target.detokenize(ids, special=False).replace("▁", " ").strip()
    assert text == "hello wörld \N{SNOWMAN}"
    assert target.tokenize("", add_special=False) == ()


def test_a_vocabulary_alone(worker: Worker, tiny_model: Path) -> None:
    info = worker.load(ModelLoad(tiny_model, vocabulary_only=True))
    assert info.n_vocab == 320
    assert worker.tokenize("a") != ()
    with pytest.raises(StepError, match="no model with a context"):
        worker.generate(PROMPT, n_predict=3)


def test_a_model_agrees_with_itself(target: Worker) -> None:
    said: Any = target.generate(PROMPT, n_predict=40, top=8, extra=3)
    reference = (said.top_ids, said.top_logits - said.logsumexp[:, None])
    again: Any = target.replay(PROMPT, said.tokens, top=8, temperature=0.5, reference=reference)
    assert np.array_equal(again.argmax, said.tokens)
    assert (again.rank == 0).all()
    assert np.abs(again.logq - said.logp).max() < 0.05
    assert np.abs(again.margin - said.margin).max() < 0.05
    assert (again.logq_t > again.logq - 1e-3).all()  # the most likely token gains when cooled
    assert again.divergence.kld.max() < 1e-3
    assert (again.divergence.alpha_low <= again.divergence.alpha_high).all()
    assert again.divergence.alpha_high.min() > 0.97
    assert np.array_equal(again.top_ids[:, 0], again.argmax)


def test_width_changes_only_numerics(target: Worker) -> None:
    text = random_text(100, seed=0)
    whole, single, odd = (target.replay(PROMPT, text, width=width) for width in (None, 1, 7))
    for other in (single, odd):
        assert (other.argmax == whole.argmax).mean() > 0.95
        assert np.abs(other.logq - whole.logq).max() < 0.1
        assert np.abs(other.confidence - whole.confidence).max() < 0.05


@pytest.mark.ik
@pytest.mark.parametrize("kind", ["q8_0", "q6_K", "iq4_kt", "iq3_kt"])
def test_a_reply_is_read_as_one_token_is_whatever_its_types(
    ik_engine: Engine, tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    """ik's kernels quantize weights again from 16, 24, 32 or 64 tokens on, by their type."""
    supervisor, quant = Supervisor(tmp_path / "logs"), tmp_path / "quant.gguf"
    names = [t.name for t in read_gguf(tiny_model).tensors if t.name.startswith("blk.")]
    types = {name: kind for name in names if "norm" not in name}
    rules = (TypeRule(r"^blk\..*_(q|k|v|output|gate|up|down)\.weight$", kind),)
    job = QuantizeJob(tiny_model, quant, "Q8_0", rules, imatrix=None, threads=1, expected=types)
    tool_runs.quantize(ik_engine, job, supervisor)
    text = random_text(200, seed=0)
    with Worker.open(ik_engine, supervisor) as worker:
        worker.load(ModelLoad(quant, context=512))
        reply, single, whole = (
            worker.replay(PROMPT, text, width=width) for width in (None, 1, 512)
        )
    assert np.array_equal(reply.logq, single.logq)
    assert not np.array_equal(whole.logq, single.logq)


def test_a_wide_batch_writes_what_a_verification_reads(
    engine: Engine, worker: Worker, tiny_model: Path
) -> None:
    """Bit for bit, at any width above one. On mainline's processors one token at a time rounds
    otherwise, by which servers with a draft come to another text after a long prompt."""
    worker.load(ModelLoad(tiny_model, context=1024))
    prompt = random_text(700)
    alone, two, *wide = (
        worker.generate(prompt, n_predict=30, top=8, extra=9, width=width) for width in (1, 2, 3, 9)
    )
    alike = np.array_equal(alone.logsumexp, two.logsumexp)
    assert alike == (engine.flavour == Flavour.IK_LLAMA_CPP)
    for other in wide:
        for name in ("tokens", "logsumexp", "top_logits"):
            assert np.array_equal(getattr(other, name), getattr(two, name))
    # With the text itself behind each token, as it is when all that is drafted is accepted.
    short = prompt[:9]
    said = worker.generate(short, n_predict=36, width=2)
    assert np.array_equal(worker.replay(short, said.tokens, width=9).logq, said.logp)


def test_a_wide_batch_ends_with_the_context(target: Worker) -> None:
    said = target.generate(PROMPT, n_predict=600, width=9)
    assert (len(said.tokens), said.stop) == (512 - len(PROMPT), "context")


def test_sampling_follows_the_chain(target: Worker) -> None:
    """One token drawn with many seeds, against the chain's probabilities."""
    n, chain = 1500, Sampling(1.5, top_k=8, top_p=0.9, min_p=0.05).applied()
    first: Any = target.generate(PROMPT, n_predict=1, top=8)
    logits = first.top_logits[0].astype(float)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    keep = int(np.searchsorted(np.cumsum(p), 0.9)) + 1
    keep = min(keep, int((p >= 0.05 * p[0]).sum()))
    q = np.exp((logits[:keep] - logits[0]) / 1.5)
    q /= q.sum()
    counts: Counter[int] = Counter()
    for seed in range(n):
        one = target.generate(PROMPT, n_predict=1, chain=dataclasses.replace(chain, seed=seed))
        token = int(one.tokens[0])
        counts[token] += 1
        at = first.top_ids[0].tolist().index(token)
        assert one.chain_logp[0] == pytest.approx(np.log(q[at]), abs=2e-3)
    expected = dict(zip(first.top_ids[0][:keep].tolist(), (q * n).tolist(), strict=True))
    assert counts.keys() <= expected.keys()
    chi = sum((counts[t] - e) ** 2 / e for t, e in expected.items())
    assert chi < keep - 1 + 4.5 * np.sqrt(2 * max(keep - 1, 1))


def test_a_seed_repeats(target: Worker) -> None:
    chain = Sampling(0.9, seed=5).applied()
    one, two = (target.generate(PROMPT, n_predict=30, chain=chain) for _ in range(2))
    other = target.generate(PROMPT, n_predict=30, chain=Sampling(0.9, seed=6).applied())
    assert np.array_equal(one.tokens, two.tokens)
    assert not np.array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize("profile", [p for p in Profile if p is not Profile.IK_2026_08_MTP])
@pytest.mark.parametrize("p_min", [0.0, 0.4])
def test_rollouts_and_simulation_equal_live_shapes(
    worker: Worker, tiny_model: Path, noisy_draft: Path, profile: Profile, p_min: float
) -> None:
    """Single-token replay and rollouts have nearly the shapes of a live draft: nearly all equal."""
    worker.load(ModelLoad(tiny_model, context=512))
    texts = [
        worker.generate((1, 30 + i), n_predict=60, extra=9, chain=Sampling(0.7, seed=i).applied())
        for i in range(8)
    ]
    worker.load(ModelLoad(noisy_draft, context=512))
    equal = drafted = accepted = 0
    for i, said in enumerate(texts):
        # the server's tokens beyond the reply are known to us only where the engine counts them
        prompt, tokens = (1, 30 + i), said.tokens[: said.emitted]
        live = worker.live_shapes(
            prompt, tokens, profile=profile, n_max=6, p_min=p_min, n_predict=60
        )
        replay = worker.replay(prompt, tokens, width=1, rollout_steps=6)
        request = {"prompt": 2, "reply": said.emitted, "n_predict": 60, "context": 512}
        positions = positions_of(replay, tokens, eog=frozenset({2}), **request)
        found = simulate(positions, DraftSettings(6, 0, p_min), profile)
        equal += (found.draft_n, found.draft_n_accepted) == (live.draft_n, live.draft_n_accepted)
        drafted += live.draft_n
        accepted += live.draft_n_accepted
        assert live.length.sum() == live.draft_n == len(live.tokens)
    assert equal >= 7
    assert 0 < accepted < drafted


def test_bare_and_times(target: Worker) -> None:
    text = random_text(100)
    assert target.bare(PROMPT, text) > 0
    timing = target.time_batch(text, depth=50, tokens=4, repeats=3, all_outputs=True, sample_k=10)
    assert timing.decode_ns.shape == (3,)
    assert (timing.decode_ns > 0).all()
    assert (timing.sample_ns > 0).all()
    prompt = target.time_batch(text, depth=0, tokens=100, repeats=2, all_outputs=False)
    assert (prompt.decode_ns > 0).all()


def test_a_batch_is_timed_with_what_follows_it(worker: Worker, loaded: Load) -> None:
    """As a draft's cycle between two batches of its target, which sweep the caches."""
    text = random_text(100)
    numbers: dict[str, Any] = {"depth": 50, "tokens": 3, "repeats": 4, "all_outputs": False}
    for threads in (1, 2):
        loaded(512, ModelArgs(threads=threads))
        alone = worker.time_batch(text, **numbers).decode_ns
        cycles = worker.time_batch(text, singles=20, sweep_bytes=1_000_001, **numbers).decode_ns
        assert cycles.shape == (4,)
        assert cycles.min() > 2 * alone.min()
        nothing = worker.read(text[:50], known=50)
        assert nothing < cycles.min() / 1e9, "the cycle's own tokens are gone"
    for name, count, said in (
        ("singles", 60, r"too short for depth 50 \+ 63"),
        ("sweep_bytes", -1, "sweep is -1"),
    ):
        with pytest.raises(StepError, match=said):
            worker.time_batch(text, **numbers | {name: count})


def test_a_text_is_read_on_from_where_it_was_left(target: Worker) -> None:
    """Nothing is left to read of what was just read or timed; what is unlike is read again."""
    text = random_text(200)
    assert target.read(text[:100]) > 0
    target.time_batch(text, depth=100, tokens=2, repeats=1, all_outputs=True)
    whole = min(target.read(text) for _ in range(5))
    target.read(text)
    nothing = min(target.read(text, known=200) for _ in range(5))
    assert nothing < whole / 10
    logits = target.replay(text[:150], text[150:])
    target.read(text[:150])
    target.read(text[::-1][:60], known=30)
    assert (target.replay(text[:150], text[150:]).argmax == logits.argmax).all()
    with pytest.raises(StepError, match="do not fit the context"):
        target.read(np.full(100_000, 5))


def test_another_context_takes_over_what_was_read(
    engine: Engine, worker: Worker, loaded: Load
) -> None:
    plain = ModelArgs(flash_attention=False)
    text = random_text(350)
    loaded(512, plain, outputs=1)
    assert loaded(512, plain, outputs=1, carry=True).carried == 0, "nothing was read"
    read_whole = worker.replay(text[:301], text[301:], width=1, ahead=300)
    worker.read(text[:300])
    log = worker.log.read_text(errors="replace")
    if engine.flavour is not Flavour.LLAMA_CPP:
        with pytest.raises(StepError, match="cannot tell what its KV cache holds"):
            loaded(512, plain, outputs=9, carry=True)
        return
    for rows in (3, 9, 1):
        assert loaded(512, plain, outputs=rows, carry=True).carried == 300
        times = worker.time_batch(text, depth=300, tokens=rows, repeats=2, all_outputs=True)
        assert (times.decode_ns > 0).all()
    carried = worker.replay(text[:301], text[301:], width=1, ahead=300)
    assert np.array_equal(carried.logsumexp, read_whole.logsumexp), "the same logits, bit for bit"
    since = worker.log.read_text(errors="replace").removeprefix(log)
    assert "loaded meta data with" in log
    assert "loaded meta data with" not in since, "the weights stay"
    worker.read(text[:300])
    with pytest.raises(StepError, match="a context of 256 tokens cannot take over the 300"):
        loaded(100, plain, outputs=3, carry=True)
    worker.read(text[:100])
    assert loaded(512, plain, outputs=3).carried == 0, "not asked for"


def test_batches_of_several_slots_are_timed(engine: Engine, worker: Worker, loaded: Load) -> None:
    loaded(256, outputs=5, slots=3)
    texts = random_text((3, 45))
    before, following = list(texts[:, :40]), list(texts[:, 40:])
    once: dict[str, Any] = {"repeats": 1, "all_outputs": True}
    for sequences in (1, 2, 3):
        for every in (True, False):
            asked = once | {"sequences": sequences, "repeats": 4, "all_outputs": every}
            times = worker.time_slots(before, following, **asked)
            assert len(times) == 4
            assert min(times) > 0
    alone = worker.time_batch(texts[0], depth=40, tokens=5, **once)
    assert (alone.decode_ns > 0).all(), "nothing of them is in its way"
    loaded(256)
    if engine.flavour is Flavour.LLAMA_CPP:  # ik's llama_n_seq_max says the cache's size
        with pytest.raises(StepError, match="3 slots in a context of 1 sequences"):
            worker.time_slots(before, following, sequences=2, **once)
    with pytest.raises(StepError, match="sequences is 4"):
        worker.time_slots(before, following, sequences=4, **once)


def test_arguments_and_flags_that_change_tokens_change_the_replay(
    worker: Worker, loaded: Load
) -> None:
    text = random_text(60)
    types = ModelArgs(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention=True)
    rope = ModelArgs(threads=1, extra=("--rope-freq-base", "100"))
    said = []
    for args in (PLAIN, types, rope):
        loaded(256, args)
        said.append(worker.replay(PROMPT, text).logq)
    plain, coarse, other = said
    assert 0 < np.abs(plain - coarse).max() < 1.0
    assert np.abs(plain - other).max() > 0.01


def test_memory_does_not_grow_with_the_text(start: Start, tiny_model: Path) -> None:
    peaks = []
    for length in (180, 1800):
        with start() as one:
            one.load(ModelLoad(tiny_model, context=2000, ubatch=64, batch=64))
            one.replay(PROMPT, random_text(length, seed=0))
            status = Path(f"/proc/{one.pid}/status").read_text()
            peaks.append(int(status.split("VmHWM:")[1].split()[0]))
    assert peaks[1] < 1.2 * peaks[0]


def test_bad_requests_are_answered_and_survived(target: Worker, tmp_path: Path) -> None:
    beyond: dict[str, Any] = {"prompt@": 0, "prompt#": 99}
    empty = np.zeros((1, 2), np.int32), np.zeros((2, 2), np.float32)
    requests: dict[str, Callable[[], object]] = {
        "token 320 at 0 is outside": lambda: target.replay((320,), (1,)),
        "do not fit the context": lambda: target.replay(PROMPT, np.full(600, 5)),
        "needs a prompt": lambda: target.replay((), (1,)),
        "unknown operation": lambda: target._request("fly"),
        "unknown profile": lambda: target.live_shapes(PROMPT, (5,), profile="ik-1999", n_max=3),
        "lies outside the payload": lambda: target._request("replay", **beyond),
    }
    for message, request in requests.items():
        with pytest.raises(StepError, match=message):
            request()
    with pytest.raises(InternalError):
        target.replay(PROMPT, (5,), reference=empty)
    assert len(target.replay(PROMPT, (5, 6)).argmax) == 2
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(StepError, match="cannot load"):
        target.load(ModelLoad(broken))


def test_raw_flags_and_the_servers_defaults_reach_the_library(engine: Engine, loaded: Load) -> None:
    flags = ("--rope-freq-base", "5000", "--rope-scale", "2", "-nkvo")
    wanted = {"rope_freq_base": 5000.0, "rope_freq_scale": 0.5, "offload_kqv": 0}
    if engine.flavour is Flavour.IK_LLAMA_CPP:
        defaults = {"context.only_active_experts": 1, "model.mla": 3}
        more: tuple[str, ...] = ("-rtr", "-amb", "512")
        given = {"model.repack_tensors": 1, "model.use_mmap": 0, "context.attn_max_batch": 512}
    else:
        defaults = {"context.swa_full": 0, "context.no_perf": 0}
        more = ("-lm", "none", "--swa-full")
        given = {"model.load_mode": 0, "context.swa_full": 1}
    found = loaded(256, ModelArgs(extra=flags)).library
    assert {f"context.{k}": v for k, v in wanted.items()}.items() <= found.items()
    assert defaults.items() <= found.items()
    assert given.items() <= loaded(256, ModelArgs(extra=more)).library.items()


def test_a_parameter_that_the_library_lacks_is_named_by_its_flag(
    worker: Worker, tiny_model: Path
) -> None:
    missing = LibraryParameter("context.no_such_thing", 1, "--no-such-thing")
    with pytest.raises(PrerequisiteError, match="--no-such-thing"):
        worker.load(ModelLoad(tiny_model, parameters=(missing,)))
    default = dataclasses.replace(missing, flag=None)
    info = worker.load(ModelLoad(tiny_model, context=64, parameters=(default,)))
    assert default.name not in info.library


def test_the_fortieth_override_counts_and_what_is_unknown_is_named(loaded: Load) -> None:
    idle = tuple(rf"blk\.{9000 + i}\.=CPU" for i in range(39))
    loaded(64, ModelArgs(override_tensor=(*idle, "x=CPU")))
    with pytest.raises(StepError, match="no device memory called 'CUDA7'"):
        loaded(64, ModelArgs(override_tensor=(*idle, "x=CUDA7")))
    with pytest.raises(StepError, match="no KV cache type 'q9_9'"):
        loaded(64, ModelArgs(cache_type_k="q9_9"))


def test_a_batch_larger_than_8192_loads_and_is_cut_to_the_context(
    worker: Worker, loaded: Load
) -> None:
    def running() -> LoadedModel:
        return read_load_log(worker.log.read_text(errors="replace"))[-1]

    loaded(512, ModelArgs(batch=32768))
    assert running()["batch"] == 512
    loaded(9216, ModelArgs(batch=32768, ubatch=9216))
    assert (running()["batch"], running()["ubatch"]) == (9216, 9216)
    found = worker.replay(PROMPT, random_text(9000))  # more than 8,192 rows of logits in one batch
    assert np.isfinite(found.logq).all()


def test_a_crash_kills_only_the_worker(start: Start) -> None:
    with start() as one:
        with pytest.raises(StepError, match="SIGABRT") as caught:
            reduce(one, [0.0], abort=True)
        assert "aborting as asked" in caught.value.message
        assert caught.value.log is not None
        with pytest.raises(StepError, match="gone"):
            one.tokenize("x")


def test_a_request_that_takes_too_long_is_stopped(start: Start, tiny_model: Path) -> None:
    with start() as one:
        one.load(ModelLoad(tiny_model, context=2000))
        one.timeout_s = 0.05
        with pytest.raises(StepError, match="no answer in time"):
            one.time_batch([5] * 1900, depth=1800, tokens=64, repeats=100_000, all_outputs=True)
        assert not Path(f"/proc/{one.pid}").exists()


@pytest.fixture
def files(engine: Engine) -> EngineFiles:
    return locate(engine)


def test_the_program_is_built_once_and_by_a_compiler(
    files: EngineFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = build_worker(files)
    before = program.stat().st_mtime_ns
    assert build_worker(files) == program
    assert program.stat().st_mtime_ns == before
    monkeypatch.setenv("COOK_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(PrerequisiteError, match="no-such-compiler") as caught:
        build_worker(files)
    assert "apt-get install gcc" in (caught.value.hint or "")


def test_headers_of_another_version_are_refused(files: EngineFiles, tmp_path: Path) -> None:
    foreign = tmp_path / "include"
    foreign.mkdir()
    for header in (h for directory in files.include_dirs for h in directory.glob("*.h")):
        shutil.copy(header, foreign)
    text, begun = (foreign / "llama.h").read_text(), "struct llama_context_params {"
    assert text.count(begun) == 1
    (foreign / "llama.h").write_text(text.replace(begun, f"{begun}\n uint64_t shift[4];"))
    program = build_worker(EngineFiles(files.flavour, "other", (foreign,), files.library_dirs))
    with pytest.raises(StepError, match=r"not of one version|died"):
        Worker(program, Supervisor(tmp_path / "logs"), engine_environment())


def test_code_that_does_not_compile_is_reported(
    files: EngineFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compile.UNITS, "worker_reduce.c", ("-include", "no-such-header.h"))
    with pytest.raises(StepError, match="does not compile"):
        build_worker(EngineFiles(files.flavour, "bad", files.include_dirs, files.library_dirs))


def test_a_prompt_is_read_ahead_in_whole_batches_once(worker: Worker, tiny_model: Path) -> None:
    """The same logits as before but for rounding, and as if the shared text were read again."""
    worker.load(ModelLoad(tiny_model, context=256))
    rng = np.random.default_rng(3)
    prompt, said = rng.integers(1, 200, 60).tolist(), rng.integers(1, 200, 12).tolist()
    plain = worker.replay(prompt, said, width=5)
    for _ in range(2):  # the second finds the text where the first left it
        found = worker.replay(prompt, said, width=5, ahead=50)
        assert np.abs(found.logq - plain.logq).max() < 1e-2
    again = worker.replay(prompt, said, width=3, ahead=50)
    # Of a text that goes another way half of what was left is kept, and so is the first.
    half = [*prompt[:25], *prompt[:24:-1]]
    turned = worker.replay(half, said, width=3, ahead=45)
    back = worker.replay(prompt, said, width=3, ahead=50)
    assert np.abs(back.logq - plain.logq).max() < 1e-2
    assert np.abs(turned.logq - plain.logq).max() > 1e-2
    reread = worker.replay(half, said, width=3)
    assert np.abs(turned.logq - reread.logq).max() < 1e-2
    other = worker.replay(prompt[::-1], said, width=3, ahead=50)
    assert np.abs(again.logq - plain.logq).max() < 1e-2
    assert np.abs(other.logq - plain.logq).max() > 1e-2
    with pytest.raises(StepError, match="ahead"):
        worker.replay(prompt, said, ahead=60)
