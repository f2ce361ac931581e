"""``python -m tools.reference RECIPE RECORD``: a long dealing, to hold a pick against.

No draft and the first of the record's ranking are dealt all prompts, pass after pass with fresh
servers, whatever turns out on the way. One JSON line of the results is appended: the speed of every
one over the best one's, with the 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.study import append_result, empty_executor, neighbour
from cook.job.decide import MOST_SEATS, Dealing
from cook.job.prepare import prepare
from cook.record.record import Objective
from cook.scoring.compare import Row, figures, standings

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "reference.jsonl"


def reference(recipe: Path, ranking: Sequence[str], minutes: float) -> dict[str, Any]:
    """No draft and the first five of ``ranking``, in passes that begin within ``minutes``."""
    prepared = prepare(recipe, engines=["bundled"])
    (layout,) = prepared.layouts
    assert layout.baseline is not None, "it scores"
    assert layout.prompts is not None, "it scores"
    grid, prompts = {c.name: c for c in layout.grid}, layout.prompts.prompts
    first = [grid[name] for name in ranking if name in grid][:MOST_SEATS]
    seated, passes = [layout.baseline, *first], 0
    whole = any(c.key.ngram for c in first)  # their servers learn from every request
    with empty_executor() as executor:
        dealing = Dealing(executor, True, 60 * minutes, {})
        while dealing.left_s() > 0:
            for block in (prompts,) if whole else dealing.blocks(prompts, seated):
                dealing.deal(seated, block)
                for why in dealing.failed.values():
                    raise RuntimeError(why)
            passes += 1
        spent_s = dealing.spent_s()
    objective = Objective(prepared.recipe.pick.maximize)
    rows = {c.name: Row(c.name, c.name, (), tuple(dealing.runs[c.key])) for c in seated}
    values = {name: objective.of(figures(row.live)) for name, row in rows.items()}
    best = max(values, key=lambda name: values[name] or 0)
    others = [_beside(rows[best], row, objective) for row in rows.values() if row.key != best]
    return {
        "reference": prepared.recipe.name,
        "best": best,
        "figure": values[best],
        "requests": len(rows[best].live),
        "others": others,
        "passes": passes,
        "together": dealing.together,
        "seconds": round(spent_s, 1),
    }


def _beside(best: Row[str], other: Row[str], objective: Objective) -> dict[str, Any]:
    """The figure of ``other`` over that of ``best``."""
    found = standings([best, other], best.key, objective)
    assert found is not None, "both ran"
    sign = 1 if found.leader == best.key else -1
    low, high = sorted((math.exp(sign * found.low), math.exp(sign * found.high)))
    over = math.exp(found.value[other.key])
    return {"name": other.key, "over_best": over, "low": low, "high": high}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("recipe", type=Path)
    asked.add_argument("record", type=Path, help="of a build of it")
    asked.add_argument("--minutes", type=float, default=45.0, help="of live runs")
    asked.add_argument("--noisy", action="store_true", help="next to a noisy neighbour")
    asked.add_argument("--results", type=Path, default=RESULTS)
    words = asked.parse_args()
    ranking = json.loads(words.record.read_text("utf-8"))["pick"]["ranking"]
    with neighbour(words.noisy):
        found = reference(words.recipe, ranking, words.minutes)
    print(json.dumps(found))
    append_result(words.results, found | {"noisy": words.noisy})


if __name__ == "__main__":
    main()
