"""Quants of the demo target's head: replay beside live servers, and what each costs.

One build drafts live with every quant at one length. Another replays them at lengths 1 to 8 and
three p_min. Its reading of the target and of all heads is compared with what the live runs take for
so many settings, and acceptance with theirs at that length. Apart from these: what reading a text
with its hidden states costs beside reading it bare, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.comparisons import built
from bench.study import Study
from cook.demo.unpack import unpacked
from cook.engines.base import ModelArgs
from cook.engines.discover import discover
from cook.engines.process.supervisor import Supervisor
from cook.engines.worker.loading import model_load
from cook.engines.worker.worker import Worker

LENGTH, LENGTHS, P_MIN = 2, list(range(1, 9)), [0.0, 0.3, 0.6]
MOST_POINTS, MOST_COST, MOST_ROWS_COST, ROUNDS = 0.5, 0.1, 1.15, 9
READING = ("trace", "rows", "head-replay")
RECIPE = """\
version: 1
name: heads
model: {source: "demo://target.gguf", allow_requantize: true}
imatrix: {corpus: "demo://data/calibration.txt", context: 512, chunks: 60, args: {threads: 1}}
quants:
  - {name: Q8_0, part: head, type: Q8_0, rules: [{embeddings: q8_0}, {output: q8_0}, {mtp: q8_0}]}
  - {name: Q8_0-OUT4, extends: Q8_0, drop_rules: [output], rules: [{output: q4_0}]}
  - {name: Q5_0, extends: Q8_0, rules: [{mtp: q5_0}]}
  - {name: Q4_0, extends: Q8_0, rules: [{mtp: q4_0}]}
  - {name: Q3_K, extends: Q8_0, rules: [{mtp: q3_K}]}
  - {name: Q2_K, extends: Q8_0, rules: [{mtp: q2_K}]}
  - {name: IQ2_XXS, extends: Q8_0, rules: [{mtp: iq2_xxs}]}
drafts: [{name: own, source: target}]
score:
  method: METHOD
  target: {source: "demo://target.gguf", args: {threads: 1}}
  prompts: demo
  limit: 12
  max_tokens: 96
  context: 2048
  draft: {n_max: LENGTHS, p_min: P_MIN, args: {threads: 1}}
  live_budget: {minutes: MINUTES}
"""


def heads() -> Study:
    """The bundled engine's."""
    with TemporaryDirectory(prefix="cook-bench-") as folder:
        live = _record(Path(folder), "live", [LENGTH], [0.0], 30)
        replayed = _record(Path(folder), "replay", LENGTHS, P_MIN, 0.1)
        cost, lowest, highest = _rows_cost(Path(folder))
    ran = _candidates(live, lambda one: one["live"])
    said = _candidates(replayed, lambda one: one["predicted"]["figures"])
    errors = {name: 100 * (_accepted(said[name]) - _accepted(ran[name])) for name in ran}
    order = [
        (a, b)
        for a, b in combinations(ran, 2)
        if (_accepted(ran[a]) - _accepted(ran[b])) * (_accepted(said[a]) - _accepted(said[b])) < 0
    ]
    seconds = sum(s["seconds"] for s in replayed["steps"] if s["kind"] in READING)
    served = sum(one["wall_ms"] for one in ran.values()) / 1000 * len(LENGTHS) * len(P_MIN)
    lines = (
        f"heads by replay and live, n_max {LENGTH}: at most {MOST_POINTS} points each",
        *(
            f"  {name:10} live {_counts(ran[name])} = {_accepted(ran[name]):.2%}, replay "
            f"{_counts(said[name])} = {_accepted(said[name]):.2%}, {error:+.2f} points"
            for name, error in errors.items()
        ),
        f"  pairs that replay has in the other order: {order or 'none'}",
        f"trace, rows and replay of {len(ran)} heads, {len(LENGTHS)} lengths, {len(P_MIN)} p_min: "
        f"{seconds:.0f} s; live, as one length takes: {served:.0f} s; {seconds / served:.3f}x, at "
        f"most {MOST_COST}x",
        f"a text with its hidden states beside bare: {cost:.3f}x (rounds {lowest:.3f} to "
        f"{highest:.3f}, n={ROUNDS}), at most {MOST_ROWS_COST}x",
    )
    within = max(map(abs, errors.values())) <= MOST_POINTS and seconds <= MOST_COST * served
    return Study(lines, within and cost <= MOST_ROWS_COST)


def _record(
    folder: Path, method: str, lengths: list[int], p_min: list[float], minutes: float
) -> dict[str, Any]:
    filled = {"METHOD": method, "LENGTHS": lengths, "P_MIN": p_min, "MINUTES": minutes}
    text = RECIPE
    for word, value in filled.items():
        text = text.replace(word, str(value))
    recipe = folder / f"{method}.yaml"
    recipe.write_text(text, encoding="utf-8")
    return built(recipe, folder / "home")


def _candidates(
    record: dict[str, Any], figures_of: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The figures of each head at the one length, without p_min."""
    settings = {"n_max": LENGTH, "n_min": 0, "p_min": 0.0}
    found = [c for c in record["candidates"] if c["draft"] and c["settings"] == settings]
    return {c["draft"]: figures_of(c) for c in found}


def _accepted(figures: dict[str, Any]) -> float:
    return float(figures["accepted"] / figures["drafted"])


def _counts(figures: dict[str, Any]) -> str:
    return f"{figures['accepted']:.0f}/{figures['drafted']:.0f}"


def _rows_cost(folder: Path) -> tuple[float, float, float]:
    """Ratio of medians, and the least and largest of a round."""
    engine, tokens = discover("bundled"), np.random.default_rng(2).integers(3, 2000, 224)
    load = (engine, unpacked(), ModelArgs(threads=1), 2048)
    logs = Supervisor(folder / "logs")
    with Worker.open(engine, logs) as bare, Worker.open(engine, logs) as giving:
        bare.load(model_load(*load))
        giving.load(model_load(*load, gives_rows=True))
        spent = [(0.0, 0.0)] * (ROUNDS + 1)
        for number in range(ROUNDS + 1):
            started = time.perf_counter()
            bare.bare(tokens[:128], tokens[128:])
            middle = time.perf_counter()
            giving.rows(tokens[:128], tokens[128:])
            spent[number] = (middle - started, time.perf_counter() - middle)
    ratios = [rows / bare_s for bare_s, rows in spent[1:]]  # the first round warms up
    medians = [median(column) for column in zip(*spent[1:], strict=True)]
    return medians[1] / medians[0], min(ratios), max(ratios)
