"""Every way the engines were seen to fail, injected: classified, reported, nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cook.engines import tool_runs
from cook.engines.base import QuantizeJob, TypeRule
from cook.engines.process import supervisor as supervising
from cook.engines.process.outcome import ProcessSpec
from cook.engines.process.supervisor import Supervisor
from cook.engines.tool_runs import TextJob
from cook.errors import CookError, PrerequisiteError, StepError

Make = Callable[..., Any]

# fault -> what the message must tell. The first group needs no real tool behind it.
ANY_TOOL = {
    "segfault": r"crashed with SIGSEGV",
    "abort": r"crashed with SIGABRT.*GGML_ASSERT\(result == nrows \* row_size\) failed",
    "terminate": r"crashed with SIGABRT.*std::length_error.*_M_default_append",
    "killed": r"crashed with SIGKILL",
    "silent": r"exited 0 but did not do its work",
    "error_without_text": r"failed with exit status 1.*printed nothing",
    "out_of_memory": r"ran out of memory.*\n.*failed to (?:allocate|initialize)",
    "disk_full": r"ran out of disk space",
    "flood": r"failed with exit status 1(?s:.*)the end of the flood",
    "terminal_codes": r"failed with exit status 1(?s:.*)red",
}
QUANTIZE = {
    "error_with_text": r"exit status 1(?s:.*)Missing importance matrix",
    "no_file": r"wrote no file",
    "garbage_file": r"did not do its work",
}
# These change what the real tool did.
QUANTIZE_REAL = {
    "partial": r"did not do its work",
    "no_last_line": r"its last line",
    "fewer_tensors": r"12 of 21 tensors",
    "ignored_rules": r"blk\.0\.attn_v\.weight: the recipe resolves to q8_0, the log says q\d_K",
    "lying_log": r"attn_v.weight: .* q8_0, the log says q6_K, the file holds q8_0",
}
EXPECTED = {f"blk.{n}.attn_v.weight": "q8_0" for n in range(2)}


@pytest.fixture
def quantizing(supervisor: Supervisor, tiny_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """``quantizing(engine, name)``: what ``engine`` makes of the tiny model."""

    def run(engine: Any, name: str = "out") -> Any:
        rules, output = (TypeRule("attn_v", "q8_0"),), tmp_path / "made" / f"{name}.gguf"
        job = QuantizeJob(tiny_model, output, "Q4_K_M", rules, None, 1, EXPECTED)
        return tool_runs.quantize(engine, job, supervisor)

    return run


@pytest.fixture
def text(tiny_model: Path, tiny_corpus: Path) -> TextJob:
    return TextJob(tiny_model, tiny_corpus, 128, 4, 1)


def check(error: CookError, message: str) -> None:
    assert re.search(message, error.message, re.DOTALL if "(?s" in message else 0), error.message
    assert "\x1b" not in error.message
    assert len(error.message.splitlines()) <= 16
    if isinstance(error, StepError):
        assert error.log.is_file()


@pytest.mark.parametrize("fault", [*ANY_TOOL, *QUANTIZE])
def test_quantize_faults(
    fault: str, standin_engine: Make, quantizing: Make, tmp_path: Path
) -> None:
    with pytest.raises(StepError) as caught:
        quantizing(standin_engine(fault, "quantize"))
    check(caught.value, (ANY_TOOL | QUANTIZE)[fault])
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.engine
@pytest.mark.parametrize("fault", QUANTIZE_REAL)
def test_quantize_lies(
    fault: str, bundled: Any, standin_engine: Make, quantizing: Make, tmp_path: Path
) -> None:
    with pytest.raises(StepError) as caught:
        quantizing(standin_engine(fault, "quantize", real=bundled.facts.bin_dir))
    check(caught.value, QUANTIZE_REAL[fault])
    assert list((tmp_path / "made").iterdir()) == []


# The tools that read a text, and what their faults say.
OF_TEXTS = {
    "perplexity": {
        "nan": r"not finite: .*negative standard deviation",
        "too_short": "need at least 256",
    },
    "imatrix": {"nan": r"not finite"},
}


@pytest.mark.parametrize(
    ("tool", "fault"),
    [
        *(("perplexity", f) for f in ("segfault", "abort", "silent", "nan", "too_short", "killed")),
        *(("imatrix", f) for f in ("segfault", "silent", "nan", "error_without_text")),
    ],
)
def test_faults_of_tools_that_read_a_text(
    tool: str,
    fault: str,
    standin_engine: Make,
    supervisor: Supervisor,
    text: TextJob,
    tmp_path: Path,
) -> None:
    engine, output = standin_engine(fault, tool), tmp_path / "made" / "output"
    run: dict[str, Callable[[], object]] = {
        "imatrix": lambda: tool_runs.imatrix(engine, text, output, supervisor),
        "perplexity": lambda: tool_runs.perplexity(engine, text, supervisor, output),
    }
    with pytest.raises(StepError) as caught:
        run[tool]()
    check(caught.value, (ANY_TOOL | OF_TEXTS[tool])[fault])
    assert list(output.parent.iterdir()) == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("fault", "message"),
    [("other_vocabulary", r"inconsistent vocabulary \(320 vs 321\)"), ("short_base", "chunk 3")],
)
def test_perplexity_and_divergence_lie(
    fault: str,
    message: str,
    bundled: Any,
    standin_engine: Make,
    supervisor: Supervisor,
    text: TextJob,
    tmp_path: Path,
) -> None:
    base, real = tmp_path / "base.bin", bundled.facts.bin_dir
    engine = standin_engine("few_chunks", "perplexity", name="few", real=real)
    with pytest.raises(StepError, match="3 of 4 chunks"):
        tool_runs.perplexity(engine, text, supervisor)
    tool_runs.perplexity(bundled, text, supervisor, base)
    engine = standin_engine(fault, "perplexity", real=real)
    with pytest.raises(StepError, match=message):
        tool_runs.divergence(engine, text.model, base, supervisor, threads=1)


@pytest.mark.parametrize(
    ("fault", "message", "limits"),
    [
        ("hang", "no output and used no processor time", {"stall_timeout_s": 0.8}),
        ("hang_deaf", "over its time limit", {"timeout_s": 0.6}),
        ("busy", "failed with exit status 3", {"stall_timeout_s": 0.5}),
    ],
)
def test_hangs(
    fault: str,
    message: str,
    limits: dict[str, Any],
    standin_engine: Make,
    supervisor: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervising, "TERM_S", 0.3)
    engine = standin_engine(fault, "quantize")
    argv = (str(engine.tool("quantize")), "in", "out", "Q4_0", "1")
    result = supervisor.run(ProcessSpec(argv, "step", engine.environment(), **limits))
    with pytest.raises(StepError, match=message):
        result.check()


def test_missing_library_is_a_prerequisite(standin_engine: Make, quantizing: Make) -> None:
    with pytest.raises(PrerequisiteError, match=r"libllama\.so\.0 is missing") as caught:
        quantizing(standin_engine("missing_library", "quantize"))
    assert "make setup" in (caught.value.hint or "")


@pytest.mark.engine
def test_one_fault_leaves_the_other_steps_alone(
    bundled: Any, standin_engine: Make, quantizing: Make, tmp_path: Path
) -> None:
    engine = standin_engine("segfault", "quantize", "bad", real=bundled.facts.bin_dir)
    assert quantizing(engine).types["blk.0.attn_v.weight"] == "q8_0"
    with pytest.raises(StepError, match="SIGSEGV"):
        quantizing(engine, "bad")
    assert [path.name for path in (tmp_path / "made").glob("*.gguf")] == ["out.gguf"]
