"""How much of a trace the no-draft control reads again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cook.formats.trace_file import TraceFile
from cook.steps.control import ENOUGH, REPLIES, ControlStep, _chosen


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
