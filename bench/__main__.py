"""``python -m bench [NAME ...]``: print ratios; exit 1 when a bound does not hold."""

from __future__ import annotations

import os
import platform
import sys

from bench.comparisons import COMPARISONS
from bench.pairs import describe, measure


def main(names: list[str]) -> int:
    if unknown := set(names) - set(COMPARISONS):
        print(f"unknown: {', '.join(unknown)} (known: {', '.join(COMPARISONS)})", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"# {platform.platform()}, {os.cpu_count()} cores, load {load:.2f} at the start")
    slow = []
    for name in names or COMPARISONS:
        with COMPARISONS[name]() as pair:
            timing = measure(pair)
            print(describe(timing), flush=True)
            if not timing.within:
                slow.append(name)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
