"""``python -m bench [NAME ...]``: print ratios; exit 1 when a bound does not hold."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial

from bench.alike import alike
from bench.comparisons import build, empty_rebuild, help_page
from bench.counts import counts, exact_counts, real_counts
from bench.heads import heads
from bench.ngram_counts import ngram_counts, two_stage_counts
from bench.replay_cost import replay_cost
from bench.search_contests import search_contests
from bench.study import Study, engine_names
from bench.tensor_reuse import tensor_reuse

STUDIES: dict[str, Callable[[], Study]] = {
    "help": help_page,
    "rebuild": empty_rebuild,
    "build": build,
    "replay-cost": replay_cost,
    "counts": counts,
    **{f"counts-real-{engine}": partial(real_counts, engine) for engine in engine_names()},
    **{f"counts-exact-{engine}": partial(exact_counts, engine) for engine in engine_names()},
    "ngram-counts": ngram_counts,
    "two-stage-counts": two_stage_counts,
    "heads": heads,
    "alike": alike,
    "tensor-reuse": tensor_reuse,
    "search-contests": search_contests,
}
NAMED_ONLY = {name for name in STUDIES if name.startswith(("counts-real-", "counts-exact-"))}
"""What runs only where it is named."""


def main(names: list[str]) -> int:
    if unknown := set(names) - set(STUDIES):
        print(f"unknown: {', '.join(unknown)} (known: {', '.join(STUDIES)})", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"# {platform.platform()}, {os.cpu_count()} cores, load {load:.2f} at the start")
    within = True
    for name in names or [name for name in STUDIES if name not in NAMED_ONLY]:
        study = STUDIES[name]()
        print("\n".join(study.lines))
        print(f"{name}: {'ok' if study.within else 'OUT OF BOUNDS'}", flush=True)
        within &= study.within
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
