"""Time to a decision on the pair of real proportions, beside the live grid that it replaces.

Without cook one starts a server for every draft at every length, and without a draft, and asks it
all prompts, as ``score: {method: live}`` does. The grid is counted once, whatever it would take to
tell the best from the rest; cook's own repeats are in its time. Of each server the start and a few
prompts are timed here, and the rest taken to be alike.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.comparisons import built
from bench.proportions import DRAFTS, PROMPTS, pair_folder, proportions_layout, write_recipe
from bench.study import Study, empty_executor
from cook.build.layout import Configuration
from cook.graph.execute import Executor
from cook.steps.live import LiveStep

TOKENS = 256
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
COARSE = (2, 4, 8)
"""The ratio is told for a grid of these lengths alone, too: cook takes about as long for either."""
SAMPLE = 3
"""Prompts that each server of the grid answers."""
LEAST_RATIO = 5.0


def decision() -> Study:
    """``cook build`` in an empty home, then a few prompts of every server of the grid."""
    threads = len(os.sched_getaffinity(0))
    with pair_folder() as folder:
        recipe = write_recipe(folder, TOKENS, n_max=LENGTHS, threads=threads)
        with TemporaryDirectory(prefix="cook-bench-") as home:
            started = time.monotonic()
            record = built(recipe, Path(home))
            build_s = time.monotonic() - started
        layout = proportions_layout(recipe, "bundled")
        assert layout.baseline is not None, "asked for"
        every = [layout.baseline, *layout.grid]
        samples = [_sample(one) for one in every]
        with empty_executor(threads) as executor:
            executor.run(samples)
            for failure in executor.outcomes.failures.values():
                raise failure.error
            seconds = [_server_s(step, PROMPTS[TOKENS], executor) for step in samples]
    certainty = record["pick"]["certainty"]
    found = "decided" if certainty["decided"] else "undecided"
    parts: defaultdict[str, float] = defaultdict(float)
    for step in record["steps"]:
        parts[step["kind"]] += step["seconds"] or 0.0
    coarse = [
        s
        for one, s in zip(every, seconds, strict=True)
        if one.settings is None or one.settings.n_max in COARSE
    ]
    ratio = sum(seconds) / build_s
    return Study(
        (
            f"{PROMPTS[TOKENS]} prompts, {len(DRAFTS)} drafts x {len(LENGTHS)} lengths and no "
            f"draft: cook build {build_s:.0f} s, {found}: {record['pick']['sentence']}",
            "of it, by kind of step: "
            + ", ".join(f"{k} {spent:.0f} s" for k, spent in sorted(parts.items(), key=_spent)),
            f"live grid of {len(every)} servers, all prompts once: {sum(seconds):.0f} s, "
            f"{ratio:.1f}x, at least {LEAST_RATIO:g}x; of those with {_told(COARSE)} tokens alone "
            f"{sum(coarse):.0f} s, {sum(coarse) / build_s:.1f}x",
        ),
        ratio >= LEAST_RATIO,
    )


def _sample(configuration: Configuration) -> LiveStep:
    """The first few prompts of its first round."""
    first = configuration.rounds[0]
    return replace(first, prompts=first.prompts[:SAMPLE])


def _server_s(sample: LiveStep, prompts: int, executor: Executor) -> float:
    """Seconds of a server that answers so many ``prompts``, going by ``sample``."""
    outcome = executor.outcomes.result(sample)
    assert outcome is not None, "nothing failed"
    requests_s = sum(run.wall_ms for run in outcome.runs) / 1000
    return outcome.load_seconds + requests_s * prompts / len(sample.prompts)


def _spent(part: tuple[str, float]) -> float:
    return -part[1]


def _told(lengths: Sequence[int]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
