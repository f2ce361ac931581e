"""``python -m bench.record_contests``: per-prompt figures of real drafts, for simulated contests.

Eight quants of the demo draft at n_max 2, 4 and 8, replayed over every demo prompt and priced
with times measured here. ``tests/scoring/test_statistics_contests.py`` draws contests from it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.demo_score import study_layout
from bench.study import empty_executor
from cook.build.forecast import Forecast, Forecaster
from cook.provenance import cook_version, machine

FILE = Path(__file__).parent.parent / "tests" / "data" / "contests.json"
LENGTHS = (2, 4, 8)
TOKENS = 128


def main() -> int:
    layout = study_layout("replay", limit=None, tokens=TOKENS, n_max=LENGTHS)
    assert layout.forecast is not None, "asked for"
    with empty_executor() as executor:
        executor.run([d.quantize for d in layout.drafts if d.quantize is not None])
        executor.run(layout.forecast.steps())
        if lost := [f.error.message for f in executor.outcomes.failures.values()]:
            print(lost[0], file=sys.stderr)
            return 1
        found = Forecaster(layout.forecast, executor.outcomes).forecasts()
    build = layout.engine.identity.build
    document = {
        "made_by": f"python -m bench.record_contests, cook {cook_version()}",
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "engine": f"{layout.engine.name} {build}",
        "machine": machine().processor,
        "drafts": "quants of cook/demo/draft-f16.gguf for cook/demo/target-q8_0.gguf, greedy, "
        f"{TOKENS} tokens at most; seconds of decoding are predicted, without overheads",
        **_document(found),
    }
    FILE.write_text(json.dumps(document, separators=(",", ":")).replace("],", "],\n") + "\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(found)} candidates")
    return 0


def _document(found: list[Forecast]) -> dict[str, Any]:
    """Columns: a value a prompt, in the same order everywhere."""
    order = sorted(run.id for run in found[0].runs)
    columns: dict[str, dict[str, list[Any]]] = {}
    for forecast in found:
        runs = {run.id: run for run in forecast.runs}
        mine = [runs[name] for name in order]
        columns[forecast.name] = {
            "seconds": [round(run.predicted_ms / 1000, 6) for run in mine],
            "drafted": [run.draft_n for run in mine],
            "accepted": [run.draft_n_accepted for run in mine],
        }
    first = {run.id: run for run in found[0].runs}
    return {
        "prompts": order,
        "categories": [first[name].category for name in order],
        "tokens": [first[name].predicted_n - 1 for name in order],
        "candidates": columns,
    }


if __name__ == "__main__":
    sys.exit(main())
