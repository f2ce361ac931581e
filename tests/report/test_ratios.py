"""Requests of two candidates, one by one, from the columns of a record."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cook.record.measured import PromptFigures
from cook.record.record import write_record
from cook.report.ratios import (
    acceptance_error,
    keys,
    prompt_runs,
    speed_interval,
    speed_ratios,
)
from tests.report import records


def prompts(accepted: list[int | None], drafted: int = 100, first: int = 0) -> PromptFigures:
    count = len(accepted)
    return PromptFigures(
        ids=tuple(f"p{first + i}" for i in range(count)),
        categories=tuple("ab"[i % 2] for i in range(count)),
        tokens=(100,) * count,
        decode_ms=(1.0,) * count,
        wall_ms=(1.0,) * count,
        drafted=tuple(drafted if a is not None else None for a in accepted),
        accepted=tuple(accepted),
    )


def test_the_error_of_an_acceptance_is_by_prompts() -> None:
    alike = acceptance_error(prompts([50] * 8))
    assert alike == 0
    mixed = acceptance_error(prompts([40, 40, 60, 60] * 4))
    assert mixed == pytest.approx(0.1 * (8 / 7) ** 0.5 / 16**0.5)
    assert acceptance_error(prompts([40, 60] * 8)) == 0, "what differs between categories"
    assert acceptance_error(prompts([50] * 7)) is None
    assert acceptance_error(prompts([50] * 14), "a") is None, "seven prompts of the category"
    assert acceptance_error(prompts([50] * 16), "a") == 0
    assert acceptance_error(None) is None


def test_an_error_of_two_passes_is_by_prompts_and_not_by_requests() -> None:
    once = prompts([40, 40, 60, 60] * 4)
    twice = replace(
        once,
        **{
            name: getattr(once, name) * 2
            for name in ("ids", "categories", "tokens", "decode_ms", "wall_ms")
        },
        drafted=once.drafted * 2,
        accepted=once.accepted * 2,
        block=(0,) * 16 + (1,) * 16,
    )
    assert acceptance_error(twice) == pytest.approx(acceptance_error(once))


def test_speeds_are_compared_over_common_requests() -> None:
    slow = prompts([50] * 16)
    fast = replace(slow, wall_ms=(0.5,) * 16)
    found = speed_interval(fast, slow, 0.95)
    assert found is not None
    assert found.low < 2.0 < found.high
    assert found.high / found.low < 1.06, "only starts differ"
    assert speed_interval(fast, prompts([50] * 16, first=9), 0.95) is None
    assert speed_interval(fast, None, 0.95) is None
    assert speed_ratios(fast, slow, category="a") == (2.0, [2.0] * 8)
    assert speed_ratios(fast, slow, category="c") == (None, [])


def test_a_block_pairs_with_the_same_block_only() -> None:
    one = replace(prompts([50] * 4), block=(0, 0, 1, 1))
    other = replace(prompts([50] * 4), wall_ms=(2.0,) * 4, block=(0, 0, 2, 2))
    assert speed_ratios(one, other, among=set(keys(one)))[0] == 2.0
    assert speed_ratios(one, other, category="a")[1] == [2.0]
    assert speed_ratios(one, other, among={("p2", 1)}) == (None, [])


def test_prompts_without_a_time_are_left_out() -> None:
    broken = replace(prompts([50] * 4), wall_ms=(0.0, 1.0, float("nan"), float("inf")))
    assert [run.id for run in prompt_runs(broken)] == ["p1"]


def test_the_documented_lines_recompute_the_picks_speedup(tmp_path: Path) -> None:
    """What docs/report.md tells a reader to run on the record's JSON."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    for made in (records.record(), records.easy_half()):
        for winner in ("Q8_0 n_max=4", "Q4_K_M n_max=4"):
            record = replace(made, pick=replace(made.pick, candidate=winner))
            write_record(record, tmp_path / "record.json")
            argv = [sys.executable, "-c", code, str(tmp_path / "record.json")]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            found = record.candidate(winner)
            assert found is not None
            assert done.stdout == f"{winner}: {found.speedup:.2f}x\n"
