"""``python -m bench.by_clock RECIPE ...``: builds as users run them, forecast beside live.

Every build has a home of its own, and one JSON line of the results is appended for it.
``--table FILE`` prints what the lines of a file come to: predicted / live - 1 by the clock, of the
requests that both are of, nothing divided out. Recipes with a head: ``tools.clock_recipes``.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.comparisons import built
from bench.study import append_result, neighbour

RESULTS = Path(__file__).parent / "results" / "by-clock.jsonl"
SPEEDS = ("end_to_end_speed", "decode_speed")


def line_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a build's ``record`` comes to."""
    pick = record["pick"]
    found = {c["name"]: c for c in record["candidates"]}
    picked = found.get(pick["candidate"], {})
    return {
        "recipe": record["recipe"],
        "engines": list(record["engines"]),
        "pick": pick["candidate"],
        "speedup": picked.get("speedup"),
        "speedup_interval": picked.get("speedup_interval"),
        **{name: pick[name] for name in ("decided", "rival", "rival_low", "rival_high")},
        "candidates": [_candidate(c) for c in found.values()],
    }


def _candidate(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Speeds as predicted and live on the requests that it was dealt, or else as predicted."""
    live, predicted = candidate["live"], candidate["predicted"]
    said = (predicted["on_live"] or predicted["figures"]) if predicted is not None else None
    return {
        "name": candidate["name"],
        "engine": candidate["engine"],
        "draft": candidate["draft"],
        "requests": live["requests"] if live is not None else 0,
        **{f"predicted_{name}": said[name] if said is not None else None for name in SPEEDS},
        **{f"live_{name}": live[name] if live is not None else None for name in SPEEDS},
    }


def errors(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """predicted / live - 1 by what was predicted: speeds of everything that ran, and speedups of
    drafts over no draft where both were dealt the same requests."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        bare = {c["engine"]: c for c in line["candidates"] if c["draft"] is None}
        for one in line["candidates"]:
            base = bare.get(one["engine"])
            for name in SPEEDS:
                if (off := _off(one, name)) is None:
                    continue
                found[name].append(off)
                if one["draft"] is None or base is None or base["requests"] != one["requests"]:
                    continue
                if (base_off := _off(base, name)) is not None:
                    found[f"speedup by {name}"].append((1 + off) / (1 + base_off) - 1)
    return dict(found)


def _off(candidate: Mapping[str, Any], name: str) -> float | None:
    predicted, live = candidate[f"predicted_{name}"], candidate[f"live_{name}"]
    return predicted / live - 1 if predicted and live else None


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Median, 90th percentile and worst error, by what was predicted."""
    yield f"{len(lines)} builds, {sum(line['decided'] for line in lines)} decided"
    yield "predicted / live - 1".ljust(30) + "  rows  median     90 %    worst"
    for name, each in errors(lines).items():
        middle, most, worst = np.quantile(np.abs(each), (0.5, 0.9, 1.0))
        yield f"{name:30}{len(each):6}{middle:8.1%}{most:9.1%}{worst:9.1%}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("recipes", nargs="*", type=Path)
    asked.add_argument("--builds", type=int, default=1)
    asked.add_argument("--engine", default="bundled")
    asked.add_argument("--noisy", action="store_true", help="next to a noisy neighbour")
    asked.add_argument("--results", type=Path, default=RESULTS)
    asked.add_argument("--records", type=Path, help="a folder for their records")
    asked.add_argument("--table", type=Path, help="print what the lines of a file come to")
    words = asked.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no build goes on behind it
    for recipe in [one for one in words.recipes for _ in range(words.builds)]:
        with TemporaryDirectory(prefix="cook-by-clock-") as home, neighbour(words.noisy):
            started = time.monotonic()
            record = built(recipe, Path(home), words.engine)
            seconds = round(time.monotonic() - started, 1)
        line = line_of(record) | {"seconds": seconds, "noisy": words.noisy}
        append_result(words.results, line)
        if words.records is not None:
            words.records.mkdir(parents=True, exist_ok=True)
            (words.records / f"{recipe.stem}-{time.time():.0f}.json").write_text(json.dumps(record))
        print(json.dumps({k: v for k, v in line.items() if k != "candidates"}), flush=True)
    if words.table is not None:
        print("\n".join(table([*map(json.loads, words.table.read_text("utf-8").splitlines())])))


if __name__ == "__main__":
    main()
