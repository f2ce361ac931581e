"""What it costs to make each tensor once, beside llama-quantize on whole files.

A random mixture of experts of some 320 MB, whose routed experts are 88 % of it. Candidates are made
as a build makes them, hashed, synced and stored; llama-quantize writes its file and ends. Both use
the same threads and take turns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.study import Study
from cook.engines.base import Engine, TypeRule
from cook.engines.discover import discover
from cook.engines.process.supervisor import ask
from cook.formats.gguf import read_gguf
from cook.graph.execute import Executor
from cook.graph.step import Source, source
from cook.graph.store import Store
from cook.output import Mode, Output
from cook.recipe.rules import quantizable
from cook.steps.quantize import TENSOR_KIND, QuantizeStep
from tools.random_model import Shape, write_random_model

SHAPE = Shape(vocabulary=4096, width=1024, layers=3, hidden=1024, heads=8, kv_heads=8, experts=16)
ROUTED = ("q4_K", "q5_K", "q6_K", "q4_0")
REST = ("q8_0", "q6_K", "q5_1")
THREADS = len(os.sched_getaffinity(0))
REPEATS = 3
MOST_ALONE, MOST_SECOND, MOST_SWEEP = 1.1, 0.15, 1.25


@dataclass(frozen=True)
class Run:
    """Seconds of some candidates in turn, of each, and of their tensors alone; peak memory of the
    quantizing program."""

    seconds: float
    each_s: tuple[float, ...]
    tensors_s: float
    peak_bytes: int


def tensor_reuse() -> Study:
    """One alone, a pair that shares its experts, and a sweep of twelve."""
    with tempfile.TemporaryDirectory(prefix="cook-bench-") as folder:
        home = Path(folder)
        engine = discover("bundled")
        model = source([write_random_model(home / "model.gguf", SHAPE)])
        sweep = [candidate(engine, model, routed, rest) for routed in ROUTED for rest in REST]
        by_tool(sweep[0], home)  # the model is in memory from here on, for both
        alone, tool = [], []
        for number in range(REPEATS):
            alone.append(by_tensor(sweep[:1], home / f"alone-{number}"))
            tool.append(by_tool(sweep[0], home))
        pair = by_tensor(sweep[:2], home / "pair")
        whole = by_tensor(sweep, home / "sweep")
        tools = [by_tool(step, home) for step in sweep]
    ratio = statistics.median(r.seconds for r in alone) / statistics.median(r.seconds for r in tool)
    peaks = max(r.peak_bytes for r in alone), max(r.peak_bytes for r in tool)
    second = pair.each_s[1] / pair.each_s[0]
    distinct = whole.seconds / whole.tensors_s
    beside = whole.seconds / sum(r.seconds for r in tools)
    return Study(
        (
            f"one candidate alone: {ratio:.2f}x llama-quantize ({THREADS} threads, median of "
            f"{REPEATS} each), at most {MOST_ALONE}x; peak memory {peaks[0] >> 20} MiB beside "
            f"{peaks[1] >> 20} MiB, no more",
            f"a second that shares the routed experts: {second:.3f}x the first's "
            f"{pair.each_s[0]:.1f} s, at most {MOST_SECOND}x",
            f"{len(sweep)} candidates over {len(ROUTED)} types of routed experts: {distinct:.2f}x "
            f"the {whole.tensors_s:.1f} s of the distinct tensors, at most {MOST_SWEEP}x; "
            f"{beside:.2f}x llama-quantize run {len(sweep)} times",
        ),
        ratio <= MOST_ALONE
        and peaks[0] <= peaks[1]
        and second <= MOST_SECOND
        and distinct <= MOST_SWEEP,
    )


def candidate(engine: Engine, model: Source, routed: str, rest: str) -> QuantizeStep:
    """Routed experts of one type, all else of another."""
    types = {
        t.name: (routed if "_exps" in t.name else rest)
        if quantizable(t.name, t.shape, t.type_name, engine.flavour, "llama")
        else t.type_name
        for t in read_gguf(model.path).tensors
    }
    return QuantizeStep(
        engine=engine,
        quant=f"{routed}-{rest}",
        source=model,
        imatrix=None,
        ftype="Q8_0",
        rules=(TypeRule("_exps", routed), TypeRule(".*", rest)),
        expected=tuple(types.items()),
        predicted_tensor_bytes=None,
    )


def by_tensor(steps: Sequence[QuantizeStep], home: Path) -> Run:
    """As a build makes them, into an empty store."""
    store = Store(home / "store")
    each_s, peaks = [], []
    with Executor(store, Output(Mode.QUIET), logs=home / "logs", threads=THREADS) as executor:
        for step in steps:
            started = time.monotonic()
            result = executor.run([step]).result(step)
            each_s.append(time.monotonic() - started)
            assert result is not None, "a random model can be quantized"
            peaks.append(result.peak_rss_bytes or 0)
    tensors_s = sum(a.seconds for a in store.entries() if a.kind == TENSOR_KIND)
    return Run(sum(each_s), tuple(each_s), tensors_s, max(peaks))


def by_tool(step: QuantizeStep, home: Path) -> Run:
    """With llama-quantize; what it wrote is thrown away."""
    output = home / "by-tool.gguf"
    argv = step.engine.quantize_command(step.job(output, None, THREADS))
    started = time.monotonic()
    result = ask(*argv, env=step.engine.environment(), timeout_s=3600).check()
    seconds = time.monotonic() - started
    output.unlink()
    return Run(seconds, (seconds,), seconds, result.peak_rss_bytes)
