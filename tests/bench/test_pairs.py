"""The bench's arithmetic and order, on commands of known length."""

from __future__ import annotations

import sys

import pytest

from bench.comparisons import COMPARISONS
from bench.pairs import Pair, Side, Timing, describe, measure

NOTHING = Side(((sys.executable, "-c", "pass"),))


def pair(most_ratio: float, most_extra_s: float = 0) -> Pair:
    return Pair("x", NOTHING, NOTHING, most_ratio, most_extra_s, repeats=3)


@pytest.mark.parametrize(
    ("most_ratio", "most_extra_s", "within"), [(2, 0, True), (1.9, 0, False), (1.5, 1, True)]
)
def test_bounds(most_ratio: float, most_extra_s: float, within: bool) -> None:
    timing = Timing(pair(most_ratio, most_extra_s), (4.0, 4.0, 9.0), (2.0, 2.0, 1.0))
    assert timing.ratio == 2
    assert timing.paired_ratios == (2, 2, 9)
    assert timing.within is within
    # In the first line: the others name commands, and a checkout's path may hold any word.
    assert describe(timing).splitlines()[0].endswith(": ok" if within else ": TOO SLOW")


def test_sides_take_turns() -> None:
    order: list[str] = []
    command = ((sys.executable, "-c", "pass"),)
    subject = Side(command, prepare=lambda: order.append("s"))
    reference = Side(command, prepare=lambda: order.append("r"))
    timing = measure(Pair("x", subject, reference, 1, 0, repeats=2))
    assert "".join(order) == "srrs"
    assert len(timing.subject_s) == len(timing.reference_s) == 2


def test_a_command_that_fails_ends_the_bench() -> None:
    broken = Side(((sys.executable, "-c", "raise SystemExit(3)"),))
    with pytest.raises(SystemExit, match="exit 3"):
        measure(Pair("x", broken, NOTHING, 1, 0, repeats=1))


def test_the_help_page_comparison_runs() -> None:
    with COMPARISONS["help"]() as found:
        assert found.subject.commands[0][1:] == ("--help",)
