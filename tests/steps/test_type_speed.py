"""Types that are slow here are told from a measurement, not from a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import ModelArgs
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.kept_workers import KeptWorkers
from cook.errors import StepError
from cook.graph.step import Workbench
from cook.graph.step import source as digest_source
from cook.paths import demo_dir
from cook.steps.type_speed import SLOW, TypeTime, TypeTimeStep, told, type_speed
from tests.pieces import pieces_in

ARGS = ModelArgs(threads=1)


def time(name: str, ms: float, size: int, prompt_ms: float = 0.01) -> TypeTime:
    return TypeTime(name, prompt_ms, ms, size)


def test_a_type_far_slower_than_the_others_is_told() -> None:
    times = [time("q8_0", 1.0, 850), time("q4_K", 0.6, 450), time("iq1_kt", 9.0, 180)]
    (warning,) = told(times)
    assert warning.startswith("iq1_kt is slow here: decoding takes 9 ms a token")
    assert "11.2 times" in warning


def test_small_types_and_large_ones_are_not_slow_for_their_size() -> None:
    # As fast as each other though a fifth of the size, and as slow as its size.
    assert told([time("q8_0", 1.0, 850), time("iq1_kt", 1.2, 180)]) == ()
    assert told([time("q2_0", 0.2, 200), time("q4_0", 0.4, 400), time("huge", 3.2, 3200)]) == ()


def test_prompts_are_looked_at_too_and_failures_told() -> None:
    slow = TypeTime("q4_k_r4", 5.0, 0.6, 450)
    failed = TypeTime("iq2_k", None, None, None, "llama-bench crashed")
    found = told([time("q8_0", 1.0, 850), time("q4_K", 0.6, 450), slow, failed])
    assert [f.split()[0] for f in found] == ["iq2_k", "q4_k_r4"]
    assert "does not run on this engine and device: llama-bench crashed" in found[0]
    assert "reading prompts" in found[1]


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10**6)), min_size=1, max_size=6))
def test_nothing_is_slow_within_the_factor(found: list[tuple[float, int]]) -> None:
    times = [time(f"t{i}", ms, size) for i, (ms, size) in enumerate(found)]
    spread = max(ms for ms, _ in found) / min(ms for ms, _ in found)
    if spread <= SLOW or len(found) == 1:
        assert told(times) == ()


def test_one_type_needs_no_comparison(standin_engine: Any) -> None:
    model = digest_source([demo_dir() / "draft-f16.gguf"])
    engine = standin_engine("silent")
    assert type_speed(engine, ["q4_K", "f16", "f32", "iq1_kt"], model, ARGS) is None
    step = type_speed(engine, ["q8_0", "q4_K", "q8_0"], model, ARGS)
    assert step is not None
    assert list(step.inputs()) == ["q4_K", "q8_0"]


def measured(engine: Any, tmp_path: Path, name: str) -> TypeTime:
    bench = Workbench(
        directory=tmp_path,
        supervisor=Supervisor(tmp_path / "logs"),
        workers=KeptWorkers(tmp_path / "workers"),
        artifact=lambda step: pytest.fail("no inputs"),
        threads=1,
        advance=lambda share: None,
        pieces=pieces_in(tmp_path / "store"),
    )
    model = digest_source([demo_dir() / "draft-f16.gguf"])
    return TypeTimeStep(engine, name, model, ARGS).run(bench)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["q4_K", "iq2_xs"])
def test_times_of_the_real_engine(bundled: Any, tmp_path: Path, name: str) -> None:
    found = measured(bundled, tmp_path, name)
    assert found.reason is None
    assert found.decode_ms is not None
    assert found.prompt_ms is not None
    assert 0 < found.prompt_ms < found.decode_ms
    assert [p.name for p in tmp_path.iterdir()] == ["logs"]


@pytest.mark.ik
@pytest.mark.parametrize("name", ["iq1_kt", "q4_k_r4"])
def test_times_of_the_real_ik(ik_engine: Any, tmp_path: Path, name: str) -> None:
    found = measured(ik_engine, tmp_path, name)
    assert found.reason is None
    assert found.decode_ms is not None
    assert found.decode_ms > 0


@pytest.mark.engine
def test_a_type_that_does_not_run_is_a_result(
    standin_engine: Any, bundled: Any, tmp_path: Path
) -> None:
    engine = standin_engine("segfault", "bench", real=bundled.facts.bin_dir)
    found = measured(engine, tmp_path, "q4_K")
    assert found.decode_ms is None
    assert found.reason


@pytest.mark.engine
@pytest.mark.parametrize("fault", ["disk_full", "out_of_memory", "killed"])
def test_want_of_disk_or_memory_says_nothing_of_a_type(
    fault: str, standin_engine: Any, bundled: Any, tmp_path: Path
) -> None:
    engine = standin_engine(fault, "quantize", real=bundled.facts.bin_dir)
    with pytest.raises(StepError) as caught:
        measured(engine, tmp_path, "q4_K")
    assert caught.value.passing
