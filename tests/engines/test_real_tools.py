"""quantize, imatrix, perplexity, divergence and benches, with the real tools of both engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cook.engines import tool_runs
from cook.engines.base import QuantizeJob, TypeRule
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import TextJob, compare, same_type
from cook.errors import InputError, StepError
from cook.formats.gguf import read_gguf
from cook.formats.imatrix_file import read_imatrix
from cook.paths import demo_dir

Make = Callable[..., Any]


Progress = list[tuple[int, int | None]]


@pytest.fixture
def progress() -> Progress:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, progress: Progress) -> Supervisor:
    return Supervisor(tmp_path / "logs", lambda done, total: progress.append((done, total)))


@pytest.fixture
def job(tiny_model: Path, tmp_path: Path) -> QuantizeJob:
    return QuantizeJob(tiny_model, tmp_path / "made" / "out.gguf", "Q4_0", (), None, 1, {})


def test_quantize_writes_what_was_resolved(
    engine: Any, supervisor: Supervisor, progress: Progress, job: QuantizeJob, tmp_path: Path
) -> None:
    rules = (
        TypeRule(r"^output\.weight$", "q6_K"),
        TypeRule(r"attn_v", "q8_0"),
        TypeRule(r"ffn_(up|gate)", "iq2_kl" if engine.flavour == "ik_llama.cpp" else "iq4_xs"),
    )
    expected = {t.name: "f32" for t in read_gguf(job.source).tensors if "norm" in t.name}
    expected |= {"output.weight": "q6_K", "blk.1.attn_v.weight": "q8_0"}
    expected |= {"blk.0.ffn_up.weight": rules[2].type, "token_embd.weight": "q4_K"}
    job = replace(job, ftype="Q4_K_S", rules=rules, expected=expected)
    result = tool_runs.quantize(engine, job, supervisor)
    file = read_gguf(job.output)
    assert {t.name: t.type_name for t in file.tensors} == result.types
    assert result.tensor_bytes == file.tensor_bytes
    assert progress[-1] == (21, 21)
    assert result.command == engine.quantize_command(job)
    assert str(job.output) in result.command
    assert [path.name for path in job.output.parent.iterdir()] == ["out.gguf"]
    # The recorded command, run by hand, writes the same tensor data.
    by_hand = tmp_path / "by-hand.gguf"
    argv = [str(by_hand) if word == str(job.output) else word for word in result.command]
    environment = dict(engine.environment())
    subprocess.run(argv, env=environment, cwd=tmp_path, check=True, capture_output=True)
    hand = read_gguf(by_hand)
    for tensor in file.tensors:
        assert file.read_tensor_bytes(tensor.name) == hand.read_tensor_bytes(tensor.name)


def test_a_silent_fallback_is_an_error(
    engine: Any, supervisor: Supervisor, job: QuantizeJob, tmp_path: Path, make_tiny_model: Make
) -> None:
    odd = make_tiny_model(tmp_path / "odd.gguf", odd_hidden=True)
    job = replace(job, source=odd, ftype="Q4_K_S", expected={"blk.0.ffn_down.weight": "q4_K"})
    with pytest.raises(StepError, match=r"blk.0.ffn_down.weight: the recipe resolves to q4_K"):
        tool_runs.quantize(engine, job, supervisor)
    assert not job.output.exists()
    known = replace(job, expected={"blk.0.ffn_down.weight": "q5_0"})
    assert any("divide" in line for line in tool_runs.quantize(engine, known, supervisor).warnings)


def test_a_missing_imatrix_is_reported(
    engine: Any, supervisor: Supervisor, job: QuantizeJob
) -> None:
    with pytest.raises(StepError, match=r"imatrix|importance matrix"):
        tool_runs.quantize(engine, replace(job, ftype="IQ2_XS"), supervisor)


def test_jobs_that_no_run_can_fulfil(
    engine: Any, supervisor: Supervisor, job: QuantizeJob, tmp_path: Path
) -> None:
    before = job.source.read_bytes()
    link = tmp_path / "link.gguf"
    link.hardlink_to(job.source)
    rule = (TypeRule("a", "q4_0"),)
    for bad, message in (
        (replace(job, output=job.source), "overwritten by its own"),
        (replace(job, output=link), "overwritten by its own"),
        (replace(job, source=tmp_path / "no"), "does not exist"),
        (replace(job, rules=rule, ftype="bf16"), "ignore every rule"),
        (replace(job, rules=(TypeRule("a=b", "q4_0"),)), "cannot say the pattern"),
    ):
        with pytest.raises(InputError, match=message):
            tool_runs.quantize(engine, bad, supervisor)
    assert job.source.read_bytes() == before


def test_measures(
    engine: Any, supervisor: Supervisor, job: QuantizeJob, tiny_corpus: Path, tmp_path: Path
) -> None:
    ik = engine.flavour == "ik_llama.cpp"
    output = tmp_path / ("imatrix.dat" if ik else "imatrix.gguf")
    text = TextJob(job.source, tiny_corpus, 128, 3, 1)
    assert tool_runs.imatrix(engine, text, output, supervisor).chunks == 3
    assert len(read_imatrix(output).entries) == 14
    base = tmp_path / "base.bin"
    source = tool_runs.perplexity(engine, text, supervisor, base)
    assert source.chunks == 3
    assert source.perplexity > 1
    assert source.error > 0
    same = tool_runs.divergence(engine, job.source, base, supervisor, threads=1)
    assert same.same_top_percent > 95
    assert same.mean_kld < 1e-3
    expected = {"blk.0.attn_q.weight": "q2_K"}
    job = replace(job, ftype="Q2_K", imatrix=output, expected=expected)
    assert "--imatrix" in tool_runs.quantize(engine, job, supervisor).command
    worse = tool_runs.divergence(engine, job.output, base, supervisor, threads=1)
    assert worse.mean_kld > 10 * max(same.mean_kld, 1e-6)
    assert worse.base_perplexity == pytest.approx(source.perplexity, rel=0.2)
    base.write_bytes(base.read_bytes()[:-10])
    with pytest.raises(InputError, match="incomplete"):
        tool_runs.divergence(engine, job.source, base, supervisor, threads=1)


def test_a_corpus_that_is_too_short(
    engine: Any, supervisor: Supervisor, tiny_model: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "short.txt"
    corpus.write_text("a few words\n")
    job = TextJob(tiny_model, corpus, 128, None, 1)
    with pytest.raises(StepError):
        tool_runs.perplexity(engine, job, supervisor)
    with pytest.raises(StepError):
        tool_runs.imatrix(engine, job, tmp_path / "x", supervisor)


@pytest.mark.ik
@pytest.mark.engine
def test_an_imatrix_of_three_chunks_is_whole(
    bundled: Any, supervisor: Supervisor, tmp_path: Path
) -> None:
    """Three chunks a batch are cut into 510 tokens, and mainline leaves the last 6 out."""
    demo = demo_dir()
    job = TextJob(demo / "draft-f16.gguf", demo / "data/calibration.txt", 512, 3, 1)
    assert tool_runs.imatrix(bundled, job, tmp_path / "i.gguf", supervisor).chunks == 3


def test_ik_refuses_a_gguf_imatrix_before_it_aborts(
    ik_engine: Any, supervisor: Supervisor, job: QuantizeJob, tmp_path: Path
) -> None:
    imatrix = tmp_path / "imatrix.gguf"
    imatrix.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match=r"legacy \.dat"):
        tool_runs.quantize(ik_engine, replace(job, imatrix=imatrix), supervisor)


def test_rules_that_a_flavour_cannot_say(standin_engine: Make, job: QuantizeJob) -> None:
    mainline = standin_engine("silent")
    ik = standin_engine("silent", flavour="ik_llama.cpp", name="ik")

    def flags(engine: Any, *rules: TypeRule, pure: bool = False) -> tuple[str, ...]:
        return tuple(engine.rule_flags(replace(job, rules=rules, pure=pure)))

    two = (TypeRule("a", "q4_k"), TypeRule(r"b\.c", "q8_0"))
    assert flags(mainline, *two) == ("--tensor-type", "a=q4_k", "--tensor-type", r"b\.c=q8_0")
    assert flags(ik, *two) == ("--custom-q", r"a=q4_K,b\.c=q8_0")  # case matters to ik
    with pytest.raises(InputError, match="cannot say the pattern"):
        flags(mainline, TypeRule(r"\D", "q4_0"))
    with pytest.raises(InputError, match="cannot say"):
        flags(ik, TypeRule("a{1,2}", "q4_0"))
    with pytest.raises(InputError, match="--pure"):
        flags(ik, *two, pure=True)
    long = flags(ik, *(TypeRule(f"blk.{n}.{'x' * 90}", "q4_0") for n in range(1500)))
    assert max(map(len, long)) < 128 << 10
    assert ",".join(long[1::2]).count("=q4_0") == 1500


def test_types_are_compared_by_what_they_are() -> None:
    assert same_type("Q4_K", "q4_K")
    assert same_type("q1_0", "q1_0_g128")
    assert not same_type("q4_K", "q4_0")
    assert compare({"a": "q4_K"}, {"a": "q4_K", "n": "f32"}, {"a": "q4_K", "n": "f32"}) == ()
    assert compare({"a": "q4_K"}, {}, {"a": "q4_K"}) == ("a: is not in the log",)
    assert len(compare({"a": "q4_K"}, {"a": "q5_0"}, {"a": "q5_0"})) == 1
    assert len(compare({}, {"a": "q4_0"}, {"a": "q4_K"})) == 1


@pytest.mark.ik
@pytest.mark.parametrize(
    ("signal_name", "said"),
    [("SIGSEGV", ""), ("SIGABRT", "Fatal glibc error: malloc assertion failure in _int_malloc\n")],
)
def test_an_imatrix_run_that_overruns_is_tried_without_fused_kernels(
    ik_engine: Any,
    standin_engine: Make,
    supervisor: Supervisor,
    tmp_path: Path,
    signal_name: str,
    said: str,
) -> None:
    """The real tool behind one that crashes at its defaults, as ik's does on small MoE models."""
    real = ik_engine.tool("imatrix")
    engine = standin_engine(flavour="ik_llama.cpp", real=real.parent)
    script = Path(engine.facts.bin_dir) / "llama-imatrix"
    script.write_text(
        f"#!{sys.executable} -IS\nimport os, signal, sys\n"
        "if '--no-fused-up-gate' not in sys.argv:\n"
        f"    sys.stderr.write({said!r}); sys.stderr.flush()\n"
        f"    os.kill(os.getpid(), signal.{signal_name})\n"
        f"os.execv({str(real)!r}, [{str(real)!r}, *sys.argv[1:]])\n"
    )
    facts = replace(engine.facts, flags=ik_engine.facts.flags)
    demo = demo_dir()
    job = TextJob(demo / "draft-f16.gguf", demo / "data" / "calibration.txt", 512, 2, 1)
    output = tmp_path / "i.dat"
    result = tool_runs.imatrix(type(engine)(engine.name, facts), job, output, supervisor)
    assert result.chunks == 2
    assert result.warnings[:3] == (
        "llama-imatrix crashed with its defaults",
        "llama-imatrix crashed with -no-fa",
        "it was collected with --no-fused-moe --no-fused-up-gate",
    )
    assert result.command[-2:] == ("--no-fused-moe", "--no-fused-up-gate")
    assert read_imatrix(output).entries
