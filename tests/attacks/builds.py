"""Real builds to be disturbed, and what must be true after every disturbance."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cook.graph.store import Artifact, Store

SMALL = """\
version: 1
name: small
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 2, args: {threads: 1}}
evaluate: {corpus: "demo://data/evaluation.txt", chunks: 1, args: {threads: 1}}
quants:
  - {name: A, type: Q8_0}
  - {name: B, type: Q8_0, rules: [{embeddings: f16}]}
"""
WHOLE = (
    SMALL.replace("name: small", "name: whole").replace("B, type: Q8_0", "B, type: Q4_K_M")
    + """\
score:
  method: live    # by replay, what runs live would hang on timings
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  limit: 4
  max_tokens: 24
  context: 3072
  draft: {n_max: 3, args: {threads: 1}}
"""
)


TIMED = ("live", "control")
"""Kinds of steps whose whole result follows from times."""
COOK = ("-m", "cook")


def build(
    recipe: Path, home: Path, *more: str, cook: Sequence[str] = COOK, **options: Any
) -> subprocess.Popen[bytes]:
    """``cook build`` started; its stderr goes to ``<home>.err``."""
    with Path(f"{home}.err").open("ab") as err:
        err.truncate(0)  # two of one home write after each other
        return subprocess.Popen(
            [sys.executable, *cook, "build", str(recipe), "--threads", "1", *more],
            # Its own folder for locks: a cook that times elsewhere on this machine holds none up.
            env={**os.environ, "COOK_HOME": str(home), "TMPDIR": str(recipe.parent)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            **options,
        )


def said(home: Path) -> str:
    """What the last build said on stderr."""
    return Path(f"{home}.err").read_text(errors="replace")


def facts(artifact: Artifact) -> dict[str, Any]:
    """What must not depend on disturbances: everything but times and memory."""
    timings = ("seconds", "_ms", "peak_rss", "others_cores", "command")

    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if not any(t in k for t in timings)}
            return {k: without_times(v) for k, v in kept.items()}
        return [without_times(v) for v in value] if isinstance(value, list) else value

    files = {f.name: f.sha256 for f in artifact.files}
    result = without_times(artifact.result)
    if artifact.kind == "imatrix":
        # Its tool may end before its own log thread has printed the last lines: then missing.
        result = {k: v for k, v in result.items() if not k.startswith("perplexity")}
    return {"files": files, "result": None if artifact.kind in TIMED else result}


def undisturbed(recipe: Path, home: Path) -> dict[str, dict[str, Any]]:
    """What a build in ``home`` stores, which is then removed: of one path for all builds that are
    compared, since a GGUF names its imatrix by path, and that its corpus."""
    assert build(recipe, home).wait() == 0, said(home)
    expected = contents(home)
    shutil.rmtree(home)
    return expected


def require_no_bug(home: Path, where: str = "") -> None:
    """The last build said neither."""
    for word in ("Traceback", "this is a bug of cook"):
        assert word not in said(home), f"{where} {said(home)[-2000:]}"


def contents(home: Path) -> dict[str, dict[str, Any]]:
    """What the store holds, by kind and key; it must verify."""
    store = Store(home / "store")
    damaged = list(store.verify())
    assert not damaged, damaged
    return {f"{a.kind} {a.key}": facts(a) for a in store.entries()}


def require_part_of(expected: dict[str, dict[str, Any]], home: Path, where: str) -> None:
    """What is stored at any moment is whole and right, if not yet all."""
    for key, found in contents(home).items():
        assert found == expected[key], f"{key} differs: {where}"


def require_no_process(home: Path) -> None:
    """Whatever cook started for ``home`` ends with it, within seconds."""
    wait_until(lambda: not _processes(str(home)), 20, f"processes of {home} run on")


def wait_until(done: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """AssertionError with ``otherwise`` where that takes longer."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def _processes(home: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                cwd, line = str((entry / "cwd").readlink()), (entry / "cmdline").read_bytes()
                if cwd.startswith(home) or home.encode() in line:
                    found.append(line.decode(errors="replace"))
    return found


def workspaces(home: Path) -> list[Path]:
    """What steps left in the store's folder of work; locks of the living are no work."""
    tmp = home / "store" / "tmp"
    return [p for p in tmp.iterdir() if p.is_dir()] if tmp.is_dir() else []


def require_nothing_left(home: Path) -> None:
    """No process, no workspace, no file half written, no lock."""
    require_no_process(home)
    assert workspaces(home) == []
    assert [p for p in home.rglob("*.tmp") if p.is_file()] == []
    locks = home / "store" / "locks"
    assert not locks.is_dir() or not list(locks.iterdir())
