"""kill -9 at any moment loses work at most: the same command again ends in the same artifacts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cook.graph.store import Artifact, Store

pytestmark = pytest.mark.engine

RECIPE = """\
version: 1
name: kills
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 30, args: {threads: 1}}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 6, args: {threads: 1}}
quants:
  - {name: Q4_K_M, type: Q4_K_M}
  - {name: IQ2_XXS, type: IQ2_XXS}
score:
  method: live    # by replay, what runs live would hang on timings
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  limit: 4
  max_tokens: 24
  context: 3072
  draft: {n_max: 3, args: {threads: 1}}
"""


def cook(recipe: Path, home: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "cook", "build", str(recipe), "--threads", "1"],
        env={**os.environ, "COOK_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,
    )


def facts(artifact: Artifact) -> dict[str, Any]:
    """What must not depend on how often a build was killed: everything but times and memory."""
    timings = ("seconds", "_ms", "peak_rss", "others_cores", "command")

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if not any(t in k for t in timings)}
            return {k: without_times(v) for k, v in kept.items()}
        return [without_times(v) for v in value] if isinstance(value, list) else value

    files = {f.name: f.sha256 for f in artifact.files}
    return {"files": files, "result": without_times(artifact.result)}


def contents(home: Path) -> dict[str, dict[str, Any]]:
    store = Store(home / "store")
    assert list(store.verify()) == []
    return {f"{a.kind} {a.key}": facts(a) for a in store.entries()}


@pytest.mark.parametrize(
    "kills", [pytest.param(2, id="two"), pytest.param(10, id="ten", marks=pytest.mark.soak)]
)
def test_killed_and_run_again(kills: int, tmp_path: Path, bundled: Any) -> None:
    recipe = tmp_path / "kills.yaml"
    recipe.write_text(RECIPE)
    # One path for both, since a GGUF names its imatrix by path.
    home = tmp_path / "home"
    started = time.monotonic()
    whole = cook(recipe, home)
    assert whole.wait() == 0, whole.stderr.read().decode() if whole.stderr else ""
    seconds = time.monotonic() - started
    expected = contents(home)
    home.rename(tmp_path / "reference")

    moments = random.Random(20_261_121)
    for _ in range(kills):
        victim = cook(recipe, home)
        time.sleep(moments.uniform(0.05, seconds))
        victim.kill()
        victim.wait()
        _no_engine_left(home)
        # What is stored at any moment is whole and right.
        assert contents(home).items() <= expected.items() if home.exists() else True
    final = cook(recipe, home)
    assert final.wait() == 0
    assert contents(home) == expected
    tmp = home / "store" / "tmp"
    assert [p for p in tmp.iterdir() if p.is_dir()] == []
    assert json.loads((home / "records" / "kills.json").read_text())["pick"]["candidate"]


def _no_engine_left(home: Path) -> None:
    """Engine processes of a killed cook end by themselves, at once."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not (left := _processes(str(home))):
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {left}")


def _processes(home: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cwd = str((entry / "cwd").readlink())
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if "llama-" in line and (home in line or cwd.startswith(home)):
                found.append(line)
    return found
