"""``cook logs`` on recorded logs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "server_logs"


@pytest.fixture
def logs(cook: Any) -> Any:
    for name in ("ik-verbose-2025.log", "llama-cpp.log", "llama-cpp.jsonl"):
        shutil.copy(DATA / name, cook.directory)
    return cook


def test_the_figures(logs: Any, check_snapshot: Any) -> None:
    check_snapshot(logs("logs", "ik-verbose-2025.log"), "logs-ik")
    check_snapshot(logs("logs", "llama-cpp.log", "llama-cpp.jsonl"), "logs-llama-cpp")
    check_snapshot(logs("logs", "llama-cpp.log", "--quiet"), "logs-quiet")


def test_each_request(logs: Any, check_snapshot: Any) -> None:
    check_snapshot(logs("logs", "ik-verbose-2025.log", "--each", "--quiet"), "logs-each")


def test_sweeps(logs: Any, check_snapshot: Any) -> None:
    row = "|  4096 |   1024 |  {} |    2.139 |  1915.29 |   12.048 |    84.99 |\n"
    (logs.directory / "sweep.txt").write_text(row.format(0) + row.format(4096) + row.format(0))
    check_snapshot(logs("logs", "sweep.txt"), "logs-sweep")


def test_json(logs: Any) -> None:
    document = json.loads(logs("logs", "ik-verbose-2025.log", "--json").stdout)
    ling = document["pairs"][1]
    acceptance = next(f for f in ling["figures"] if f["name"] == "acceptance")
    assert acceptance["total"]["numerator"] / acceptance["total"]["denominator"] == 7384 / 9825
    assert acceptance["total"]["value"] == 7384 / 9825
    assert ling["requests"][0]["line"] == 3
    assert document["files"][0]["lines"] == 3


def test_no_request(logs: Any, check_snapshot: Any) -> None:
    (logs.directory / "notes.txt").write_text("nothing here\n")
    done = logs("logs", "notes.txt")
    assert done.status == 0
    check_snapshot(done, "logs-none")
    assert logs("logs", "absent.log").status == 2


def test_no_line_that_can_be_read(logs: Any, check_snapshot: Any) -> None:
    line = "he said: draft acceptance = 0.64479 (  167 accepted /   259 generated)\n"
    (logs.directory / "said.txt").write_text("-\n" + line)
    done = logs("logs", "said.txt")
    assert done.status == 2
    check_snapshot(done, "logs-unread")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_scatter(logs: Any, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    done = logs("logs", "llama-cpp.log", "--plot", f"out.{suffix}")
    assert done.status == 0, done.stderr
    image = (logs.directory / f"out.{suffix}").read_bytes()
    assert b"target-q8_0 + draft-f16" in image if suffix == "svg" else image[1:4] == b"PNG"


@pytest.mark.parametrize("plot", ["out.gif", "absent/out.svg"])
def test_a_plot_that_cannot_be_written(logs: Any, plot: str) -> None:
    done = logs("logs", "llama-cpp.log", "--plot", plot)
    assert (done.status, done.stdout) == (2, "")


def test_nothing_to_plot(logs: Any) -> None:
    done = logs("logs", "--plot", "out.svg", "-")
    assert done.status == 2
    assert not (logs.directory / "out.svg").exists()
