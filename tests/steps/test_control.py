"""How much of a trace the no-draft control reads again, and what it is compared with."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cook.engines.base import Engine, ModelArgs
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.graph.execute import Executor
from cook.graph.step import source
from cook.graph.store import Store
from cook.output import Output
from cook.prompts.prompt_set import Prompt
from cook.steps.control import ENOUGH, REPLIES, ControlStep, _chosen
from cook.steps.trace import TraceStep


class Heads:
    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.heads = [SimpleNamespace(prompt_tokens=p, emitted=e) for p, e in sizes]

    def __len__(self) -> int:
        return len(self.heads)


def chosen(*sizes: tuple[int, int]) -> set[int]:
    trace: Any = Heads(*sizes)
    return _chosen(cast(TraceFile, trace))


def test_the_shortest_prompts_until_there_is_enough() -> None:
    """Twelve prompts of 22,000 tokens were read where three replies show as much."""
    half = ENOUGH // 2
    assert chosen((9_000, half), (22_000, half), (50, half), (300, half)) == {2, 3}
    assert chosen(*((100 + i, 10) for i in range(40))) == set(range(REPLIES))
    assert chosen((22_000, 4 * ENOUGH)) == {0}


def test_a_control_that_fails_is_told_where_its_result_would_be() -> None:
    assert ControlStep.optional


@pytest.mark.engine
def test_wide_batches_are_compared_with_single_tokens_whatever_the_trace_is(
    bundled: Engine, tiny_model: Path, tmp_path: Path
) -> None:
    """Of a trace in wide batches the line of near ties was 0, and every other text a larger gap."""
    target, args = source([tiny_model]), ModelArgs(threads=1)
    prompts = tuple(Prompt(f"p{i}", "code", f"def area_{i}(width):", "pick") for i in range(3))
    single = TraceStep(bundled, target, args, 512, prompts, 40, Sampling(), chat=False)
    steps = [
        ControlStep(bundled, target, args, trace, 5)
        for trace in (single, replace(single, batch_width=2))
    ]
    quiet = Output(stdout=io.StringIO(), stderr=io.StringIO())
    with Executor(Store(tmp_path / "store"), quiet, logs=tmp_path / "logs", threads=1) as executor:
        executor.run(steps)
        assert not executor.outcomes.failures
        found = [executor.outcomes.result(step) for step in steps]
    of_single, of_wide = found
    assert of_single is not None
    assert of_wide is not None
    assert (of_wide.width, of_wide.positions) == (of_single.width, of_single.positions) == (5, 120)
    assert of_single.p50 > 0
    assert of_wide.p50 == pytest.approx(of_single.p50, rel=0.2)
    assert of_wide.near_tie_gap == pytest.approx(of_single.near_tie_gap, rel=0.2)
