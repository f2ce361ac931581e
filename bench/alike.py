"""``python -m bench.alike``: two servers without a draft, dealt the same prompts: are they alike?

They are one model with the same arguments, so every difference is an error of timing: the interval
should hold 1 in 95 of 100 runs. A start is dealt all prompts, in turns its share, as in a build.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.study import Study, append_result, empty_executor, neighbour
from cook.job.layout import NO_DRAFT, dealt_into
from cook.job.prepare import prepare
from cook.recipe.load import parse_recipe
from cook.record.record import Objective
from cook.scoring.compare import Row, standings
from cook.steps.deal import DealStep

RECIPE = """\
version: 1
name: alike
drafts: [{name: draft, source: "TARGET"}]
score:
  method: live
  target: {source: "TARGET", args: {threads: THREADS, flash_attention: false}}
  prompts: demo
  categories: [docstring, tests, prose, class, function-body, literal]
  limit: 24
  max_tokens: 96
  context: 2048
"""
TARGET, NAMES = "demo://target.gguf", (NO_DRAFT, "again")
RESULTS = Path(__file__).parent / "results" / "alike.jsonl"


def measured(target: str, threads: int, starts: int, *, together: bool) -> dict[str, Any]:
    """One run: ``ratio``, the speed of the one server over that of the other, with the interval
    ``low`` to ``high`` of its error of timing; ``disturbed`` of all ``requests``."""
    text = RECIPE.replace("TARGET", target).replace("THREADS", str(threads))
    layout = prepare(parse_recipe(text, Path("alike.yaml").absolute()), engines=["bundled"])
    baseline = layout.layouts[0].baseline
    assert baseline is not None, "it scores"
    live = baseline.live
    shares = (live.prompts,) * starts if together else dealt_into(live.prompts, starts)
    servers = [[replace(live, name=n, prompts=share) for n in NAMES] for share in shares]
    steps = tuple(DealStep(tuple(two), block, together) for block, two in enumerate(servers))
    with empty_executor() as executor:
        outcomes = executor.run(steps)
        for failure in outcomes.failures.values():
            raise failure.error
        blocks = [block for step in steps if (block := outcomes.result(step)) is not None]
    each = [[run for block in blocks for run in block.counted(place)] for place in (0, 1)]
    one, other = (Row(name, None, (), tuple(r)) for name, r in zip(NAMES, each, strict=True))
    found = beside(one, other, Objective.END_TO_END_SPEED)
    return {
        **found,
        "holds_one": found["low"] <= 1 <= found["high"],
        "half_width": math.sqrt(found["high"] / found["low"]) - 1,
        "together": all(block.together for block in blocks),
        "disturbed": sum(run.disturbed for block in blocks for run in block.runs),
        "requests": sum(len(block.runs) for block in blocks),
        "counting": sum(map(len, each)),
        "seconds": round(sum(block.seconds for block in blocks), 1),
    }


def beside(one: Row[str], other: Row[str], objective: Objective) -> dict[str, float]:
    """``ratio``: the figure of ``other`` over that of ``one``, ``low`` to ``high`` by timing."""
    found = standings([one, other], one.key, objective)
    assert found is not None, "both ran"
    sign = 1 if found.leader == one.key else -1
    low, high = sorted(math.exp(sign * end) for end in (found.low, found.high))
    return {"ratio": math.exp(found.value[other.key]), "low": low, "high": high}


def line_of(run: dict[str, Any]) -> str:
    return (
        f"two servers of one model: {run['ratio']:.4f} ({run['low']:.4f} to {run['high']:.4f}), "
        f"{'holds 1' if run['holds_one'] else 'DOES NOT HOLD 1'}, +- {run['half_width']:.2%}; "
        f"{run['disturbed']} of {run['requests']} requests disturbed, {run['counting']} count, "
        f"{run['seconds']:.0f} s"
    )


def alike() -> Study:
    """The demo's target, one thread, four starts, both servers alive at once."""
    run = measured(TARGET, 1, 4, together=True)
    return Study((line_of(run),), run["holds_one"])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--target", default=TARGET, help="a GGUF, or demo://NAME")
    asked.add_argument("--threads", type=int, choices=(1, 2), default=1)
    asked.add_argument("--starts", type=int, choices=(1, 2, 4), default=4)
    asked.add_argument("--turns", action="store_true", help="one server alive at a time")
    asked.add_argument("--runs", type=int, default=1)
    asked.add_argument("--noisy", action="store_true", help="next to a noisy neighbour")
    asked.add_argument("--results", type=Path, default=RESULTS)
    words = asked.parse_args()
    cell = {name: getattr(words, name) for name in ("threads", "starts", "turns", "noisy")}
    held = 0
    for number in range(words.runs):
        with neighbour(words.noisy):
            run = measured(words.target, words.threads, words.starts, together=not words.turns)
        print(f"{number + 1}: {line_of(run)}", flush=True)
        append_result(words.results, {"cell": {"target": Path(words.target).name, **cell}, **run})
        held += run["holds_one"]
    print(f"{cell}: 1 is held in {held} of {words.runs} runs")


if __name__ == "__main__":
    main()
