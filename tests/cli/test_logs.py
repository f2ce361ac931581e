"""``cook logs`` on recorded logs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "server_logs"
SWEEP = "|  4096 |   1024 |  {} |    2.139 |  1915.29 |   12.048 |    84.99 |\n"
SAID = "-\nhe said: draft acceptance = 0.64479 (  167 accepted /   259 generated)\n"
SHOWN: dict[str, tuple[int, str]] = {
    "ik": (0, "ik-verbose-2025.log"),
    "llama-cpp": (0, "llama-cpp.log llama-cpp.jsonl"),
    "quiet": (0, "llama-cpp.log --quiet"),
    "each": (0, "ik-verbose-2025.log --each --quiet"),
    "sweep": (0, "sweep.txt"),
    "none": (0, "notes.txt"),
    "unread": (2, "said.txt"),
}


@pytest.fixture
def logs(cook: Any) -> Any:
    for name in ("ik-verbose-2025.log", "llama-cpp.log", "llama-cpp.jsonl"):
        shutil.copy(DATA / name, cook.directory)
    (cook.directory / "sweep.txt").write_text("".join(map(SWEEP.format, (0, 4096, 0))))
    (cook.directory / "notes.txt").write_text("nothing here\n")
    (cook.directory / "said.txt").write_text(SAID)
    return cook


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown(logs: Any, check_snapshot: Any, name: str) -> None:
    status, words = SHOWN[name]
    done = logs("logs", *words.split())
    assert done.status == status
    check_snapshot(done, f"logs-{name}")


def test_json(logs: Any) -> None:
    document = json.loads(logs("logs", "ik-verbose-2025.log", "--json").stdout)
    ling = document["pairs"][1]
    acceptance = next(f for f in ling["figures"] if f["name"] == "acceptance")
    assert acceptance["total"]["numerator"] / acceptance["total"]["denominator"] == 7384 / 9825
    assert acceptance["total"]["value"] == 7384 / 9825
    assert ling["requests"][0]["line"] == 3
    assert document["files"][0]["lines"] == 3


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_scatter(logs: Any, suffix: str) -> None:
    done = logs("logs", "llama-cpp.log", "--plot", f"out.{suffix}")
    assert done.status == 0, done.stderr
    image = (logs.directory / f"out.{suffix}").read_bytes()
    assert b"target-q8_0 + draft-f16" in image if suffix == "svg" else image[1:4] == b"PNG"


@pytest.mark.parametrize("words", ["llama-cpp.log o.gif", "llama-cpp.log absent/o.svg", "- o.svg"])
def test_a_plot_that_cannot_be_written(logs: Any, words: str) -> None:
    log, plot = words.split()
    done = logs("logs", log, "--plot", plot)
    assert (done.status, done.stdout) == (2, "")
    assert not (logs.directory / plot).exists()
