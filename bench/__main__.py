"""``python -m bench [NAME ...]``: print ratios; exit 1 when a bound does not hold."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial

from bench.comparisons import COMPARISONS
from bench.counts import counts, exact_counts, real_counts
from bench.ngram_counts import ngram_counts, two_stage_counts
from bench.pairs import describe, measure
from bench.replay_cost import replay_cost
from bench.search_contests import search_contests
from bench.study import Study, engine_names
from bench.tensor_reuse import tensor_reuse

STUDIES: dict[str, Callable[[], Study]] = {
    "replay-cost": replay_cost,
    "counts": counts,
    **{f"counts-real-{engine}": partial(real_counts, engine) for engine in engine_names()},
    **{f"counts-exact-{engine}": partial(exact_counts, engine) for engine in engine_names()},
    "ngram-counts": ngram_counts,
    "two-stage-counts": two_stage_counts,
    "tensor-reuse": tensor_reuse,
    "search-contests": search_contests,
}
NAMED_ONLY = {name for name in STUDIES if name.startswith(("counts-real-", "counts-exact-"))}
"""What runs only where it is named."""


def main(names: list[str]) -> int:
    known = [*COMPARISONS, *STUDIES]
    if unknown := set(names) - set(known):
        print(f"unknown: {', '.join(unknown)} (known: {', '.join(known)})", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"# {platform.platform()}, {os.cpu_count()} cores, load {load:.2f} at the start")
    slow = []
    for name in names or [name for name in known if name not in NAMED_ONLY]:
        if name in STUDIES:
            study = STUDIES[name]()
            print("\n".join(study.lines), flush=True)
            if not study.within:
                print(f"{name}: OUT OF BOUNDS", flush=True)
                slow.append(name)
            continue
        with COMPARISONS[name]() as pair:
            timing = measure(pair)
            print(describe(timing), flush=True)
            if not timing.within:
                slow.append(name)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
