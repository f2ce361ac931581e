"""What builds come to by the clock, and how alike two servers are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.alike import Alike, compared
from bench.by_clock import errors, line_of, table
from bench.neighbour import append_result, neighbour
from cook.record.prompt_runs import PromptRun


def figures(requests: int, end_to_end: float, decode: float) -> dict[str, Any]:
    return {"requests": requests, "end_to_end_speed": end_to_end, "decode_speed": decode}


def candidate(
    name: str, live: dict[str, Any] | None, on_live: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "name": name,
        "engine": "bundled",
        "draft": None if name == "no draft" else name,
        "live": live,
        "predicted": {"figures": figures(24, 90.0, 190.0), "on_live": on_live},
        "speedup": 1.5,
        "speedup_interval": {"low": 1.4, "high": 1.6},
    }


RECORD = {
    "recipe": "demo",
    "engines": {"bundled": {}},
    "pick": {
        "candidate": "Q8_0",
        "decided": True,
        "rival": "Q4_0",
        "rival_low": 0.97,
        "rival_high": 1.004,
    },
    "candidates": [
        candidate("no draft", figures(24, 100.0, 200.0), figures(24, 110.0, 200.0)),
        candidate("Q8_0", figures(24, 150.0, 300.0), figures(24, 150.0, 330.0)),
        candidate("Q4_0", figures(6, 100.0, 200.0), figures(6, 90.0, 200.0)),
        candidate("Q2_K", None, None),
    ],
}


def test_a_line_has_what_was_predicted_of_the_requests_that_ran() -> None:
    line = line_of(RECORD)
    assert (line["recipe"], line["pick"], line["speedup"]) == ("demo", "Q8_0", 1.5)
    assert (line["decided"], line["rival"], line["rival_high"]) == (True, "Q4_0", 1.004)
    ran, gone = line["candidates"][1], line["candidates"][3]
    assert (ran["predicted_decode_speed"], ran["live_decode_speed"]) == (330.0, 300.0)
    assert (gone["predicted_decode_speed"], gone["live_decode_speed"]) == (190.0, None)


def test_errors_are_of_speeds_and_of_speedups_on_the_same_requests() -> None:
    found = errors([line_of(RECORD)])
    assert found["end_to_end_speed"] == pytest.approx([0.1, 0.0, -0.1])
    assert found["decode_speed"] == pytest.approx([0.0, 0.1, 0.0])
    # of Q8_0 alone: Q4_0 was dealt other requests than no draft
    assert found["speedup by end_to_end_speed"] == pytest.approx([1 / 1.1 - 1])
    assert found["speedup by decode_speed"] == pytest.approx([0.1])


def test_the_table_tells_median_90_per_cent_and_worst() -> None:
    lines = list(table([line_of(RECORD)] * 2))
    assert lines[0] == "2 builds, 2 decided"
    (row,) = (line for line in lines if line.startswith("end_to_end_speed"))
    assert row.split()[1:] == ["6", "10.0%", "10.0%", "10.0%"]


def test_results_say_where_they_are_from(tmp_path: Path) -> None:
    file = tmp_path / "results" / "some.jsonl"
    for number in (1, 2):
        append_result(file, {"number": number})
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["number"] for line in lines] == [1, 2]
    assert all(line["machine"] and line["made"].startswith("20") for line in lines)


def test_a_neighbour_ends_with_the_block() -> None:
    with neighbour(noisy=True), neighbour(noisy=False):
        pass


def test_alike_servers_have_a_ratio_about_one() -> None:
    rng = np.random.default_rng(2)
    bare = [
        PromptRun(f"p{i}", "code", 9, 5.0, 97, 900.0, 1000.0, None, None, None, "t", "limit")
        for i in range(24)
    ]
    noisy = [replace(run, wall_ms=run.wall_ms * float(np.exp(0.01 * rng.normal()))) for run in bare]
    low, high, ratio = compared(bare, noisy)
    assert low < ratio < high
    half = [replace(run, wall_ms=run.wall_ms / 2) for run in bare]
    low, high, ratio = compared(bare, half)
    assert low < ratio < high
    assert ratio == pytest.approx(2.0)
    assert low > 1.9
    low, high, ratio = compared(half, bare)
    assert high < 0.53


def test_a_run_says_whether_one_is_held() -> None:
    found = Alike(1.01, 0.99, 1.03, together=True, disturbed=3, seconds=61.0)
    assert found.holds_one
    assert found.half_width == pytest.approx(0.02, abs=1e-4)
    assert str(found).startswith("1.0100 (0.9900 to 1.0300), holds 1, +- 2.00%; together, 3 dist")
    assert "DOES NOT HOLD 1" in str(replace(found, low=1.001))
