"""Time to a decision on the pair of real proportions, beside the live grid that it replaces.

Without cook one starts a server for every draft at every length, and without a draft, and asks it
all prompts, as often as it takes to tell the best from the rest. How often that is, cook's own live
runs of its finalists say: the grid is given the same rounds, of which one is run here.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.comparisons import built
from bench.proportions import DRAFTS, PROMPTS, pair_folder, proportions_layout, write_recipe
from bench.study import Study, empty_executor
from cook.build.layout import interleaved

TOKENS = 256
LENGTHS = (2, 4, 8)
LEAST_RATIO = 5.0


def decision() -> Study:
    """``cook build`` in an empty home, then one live round of the whole grid."""
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
        with empty_executor(threads) as executor:
            shares = interleaved(every)
            executor.run(shares)
            round_s = sum(executor.outcomes.artifact(step).seconds for step in shares)
    # A step that was made twice was a disturbed one, and counts as one.
    live = {(step["label"], step["key"]) for step in record["steps"] if step["kind"] == "live"}
    runs = Counter(label.partition(" round ")[0] for label, _ in live)
    rounds = max(runs.values()) / len(layout.baseline.rounds)
    certainty = record["pick"]["certainty"]
    ratio = rounds * round_s / build_s
    found = "decided" if certainty["decided"] else "undecided"
    parts: Counter[str] = Counter()
    for step in record["steps"]:
        parts[step["kind"]] += step["seconds"] or 0.0
    return Study(
        (
            f"{PROMPTS[TOKENS]} prompts, {len(DRAFTS)} drafts x {len(LENGTHS)} lengths and no "
            f"draft: cook build {build_s:.0f} s, {found}: {record['pick']['sentence']}",
            "of it, by kind of step: "
            + ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in parts.most_common()),
            f"live grid of {len(every)} configurations: one round {round_s:.0f} s, the "
            f"{rounds:g} rounds that cook ran its finalists {rounds * round_s:.0f} s: "
            f"{ratio:.1f}x, at least {LEAST_RATIO:g}x",
        ),
        ratio >= LEAST_RATIO,
    )
