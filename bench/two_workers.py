"""Twelve candidates on a cluster of two workers, against one worker: quantization alone.

Real processes on loopback over one COOK_HOME, each step one thread; a store of its own each time.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.study import Study
from cook.build.needs import needs_of
from cook.build.prepare import prepare
from cook.build.reckon import nominal_seconds
from cook.graph.cluster import connected
from cook.graph.execute import Executor
from cook.graph.store import Store
from cook.output import Mode, Output
from tests.clusters import cluster

TYPES = (
    *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"),
    *("iq4_nl", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"),
)
MOST = 0.65
REPEATS = 2


def two_workers() -> Study:
    """No candidate shares a tensor's type with another, so that none is spared any work."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for number in range(REPEATS):
        for workers in (1, 2) if number % 2 == 0 else (2, 1):
            seconds[workers].append(_seconds(workers))
    one, two = (statistics.median(seconds[workers]) for workers in (1, 2))
    ratio = two / one
    return Study(
        (
            f"{len(TYPES)} candidates quantized, one thread each: one worker {one:.1f} s, two "
            f"{two:.1f} s, ratio {ratio:.2f}, at most {MOST} ({REPEATS} runs of each in turn)",
        ),
        ratio <= MOST,
    )


def _seconds(workers: int) -> float:
    with TemporaryDirectory(prefix="cook-bench-") as directory, _home(Path(directory)) as home:
        recipe = home.parent / "recipe.yaml"
        recipe.write_text(_recipe())
        (layout,) = prepare(recipe, engines=["bundled"], threads=1).layouts
        assert layout.imatrix is not None, "asked for"
        quantizing = [draft.quantize for draft in layout.drafts if draft.quantize is not None]
        with (
            cluster(home.parent, home, workers) as processes,
            connected(
                processes.address,
                threads=1,
                fresh=False,
                reckon=nominal_seconds,
                needs=needs_of,
            ) as elsewhere,
            Executor(
                Store(home / "store"),
                Output(Mode.QUIET),
                logs=home / "logs",
                threads=1,
                elsewhere=elsewhere,
            ) as executor,
        ):
            executor.run([layout.imatrix])
            started = time.monotonic()
            outcomes = executor.run(quantizing)
            taken = time.monotonic() - started
        assert not outcomes.failures, outcomes.failures
        return taken


@contextmanager
def _home(folder: Path) -> Iterator[Path]:
    """COOK_HOME below ``folder``, of this process and its workers."""
    before = os.environ.get("COOK_HOME")
    os.environ["COOK_HOME"] = str(folder / "home")
    try:
        yield folder / "home"
    finally:
        if before is None:
            del os.environ["COOK_HOME"]
        else:
            os.environ["COOK_HOME"] = before


def _recipe() -> str:
    rules = "{embeddings: q8_0}, {output: q6_K}"
    quants = [f"  - {{name: {t}, type: Q4_0, rules: [{rules}, {{'re:.': {t}}}]}}" for t in TYPES]
    return "\n".join(
        (
            "version: 1",
            "name: twelve",
            'model: {source: "demo://draft-f16.gguf"}',
            'imatrix: {corpus: "demo://data/calibration.txt", chunks: 4, args: {threads: 1}}',
            "quants:",
            *quants,
        )
    )
