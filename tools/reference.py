"""``python -m tools.reference RECIPE RECORD``: a long dealing, to hold a pick against.

The pick, no draft and the next of the record's ranking, five next to no draft, are dealt all
prompts, pass after pass with fresh servers, whatever turns out on the way. One JSON line of the
results is appended: the figure of every other one over the pick's, with the 95 % interval, of the
requests that both were dealt. The pick is the record's, so it was not chosen on these requests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.alike import beside
from bench.study import append_result, empty_executor, neighbour
from cook.job.decide import MOST_SEATS, Dealing
from cook.job.layout import NO_DRAFT
from cook.job.prepare import prepare
from cook.record.record import Objective
from cook.scoring.compare import Row, common, figures

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "reference.jsonl"


def reference(recipe: Path, pick: str, ranking: Sequence[str], minutes: float) -> dict[str, Any]:
    """``pick``, no draft and the first of ``ranking``, in passes that begin within ``minutes``."""
    prepared = prepare(recipe, engines=["bundled"])
    (layout,) = prepared.layouts
    assert layout.baseline is not None, "it scores"
    assert layout.prompts is not None, "it scores"
    named = {c.name: c for c in (layout.baseline, *layout.grid)}
    first = dict.fromkeys(name for name in (NO_DRAFT, pick, *ranking) if name in named)
    seated, prompts = [named[name] for name in first][: 1 + MOST_SEATS], layout.prompts.prompts
    assert pick in first, "the record is of this recipe"
    whole, passes = any(c.key.ngram for c in seated), 0  # n-grams learn from every request
    with empty_executor() as executor:
        dealing = Dealing(executor, True, 60 * minutes, {})
        while dealing.left_s() > 0:
            for block in (prompts,) if whole else dealing.blocks(prompts, seated):
                dealing.deal(seated, block)
                if dealing.failed:
                    raise RuntimeError(f"{dealing.failed}")
            passes += 1
        spent_s = dealing.spent_s()
    objective = Objective(prepared.recipe.pick.maximize)
    rows = {c.name: Row(c.name, c.name, (), tuple(dealing.runs[c.key])) for c in seated}
    picked = rows.pop(pick)
    others = {}
    for name, row in rows.items():
        others[name] = beside(picked, row, objective)
        others[name]["requests"] = len(common(picked.live, row.live))
    return {
        "reference": prepared.recipe.name,
        "pick": pick,
        "figure": objective.of(figures(picked.live)),
        "others": others,
        "passes": passes,
        "together": dealing.together,
        "seconds": round(spent_s, 1),
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("recipe", type=Path)
    asked.add_argument("record", type=Path, help="of a build of it")
    asked.add_argument("--minutes", type=float, default=45.0, help="of live runs")
    asked.add_argument("--noisy", action="store_true", help="next to a noisy neighbour")
    asked.add_argument("--results", type=Path, default=RESULTS)
    words = asked.parse_args()
    said = json.loads(words.record.read_text("utf-8"))["pick"]
    with neighbour(words.noisy):
        found = reference(words.recipe, said["candidate"], said["ranking"], words.minutes)
    print(json.dumps(found))
    append_result(words.results, found | {"noisy": words.noisy})


if __name__ == "__main__":
    main()
