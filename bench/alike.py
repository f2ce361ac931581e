"""Two servers of one model without a draft, dealt the same prompts: does the interval hold 1?

Every difference is an error of timing: of 100 runs the interval should hold 1 in 95.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from bench.study import Study, empty_executor
from cook.build.layout import NO_DRAFT, dealt_into
from cook.build.prepare import prepare
from cook.recipe.load import parse_recipe
from cook.record.objective import Objective
from cook.scoring.compare import Row, standings
from cook.steps.deal import DealStep, Dealt

RECIPE = """\
version: 1
name: alike
drafts: [{name: draft, source: "demo://draft-f16.gguf"}]
score:
  method: live
  target: {source: "demo://target.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  categories: [docstring, tests, prose, class, function-body, literal]
  limit: 24
  max_tokens: 96
  context: 2048
"""
STARTS = 4
AGAIN = "again"


def alike() -> Study:
    """The demo's target, one thread, both servers alive at once in every block."""
    loaded = parse_recipe(RECIPE, Path("alike.yaml").absolute())
    layout = prepare(loaded, engines=["bundled"]).layouts[0]
    assert layout.baseline is not None, "it scores"
    servers = [replace(layout.baseline.live, name=name) for name in (NO_DRAFT, AGAIN)]
    steps = tuple(
        DealStep(tuple(replace(s, prompts=prompts) for s in servers), block, together=True)
        for block, prompts in enumerate(dealt_into(servers[0].prompts, STARTS))
    )
    with empty_executor() as executor:
        outcomes = executor.run(steps)
        for failure in outcomes.failures.values():
            raise failure.error
        dealt = [Dealt(steps, one.name).outcomes(outcomes.result) for one in servers]
    runs = [tuple(run for outcome in side for run in outcome.runs) for side in dealt]
    rows = [Row(s.name, None, (), side) for s, side in zip(servers, runs, strict=True)]
    found = standings(rows, NO_DRAFT, Objective.END_TO_END_SPEED)
    assert found is not None, "both ran"
    rival, leader = found.rival or AGAIN, found.leader
    low, high, ratio = map(
        math.exp, (found.low, found.high, found.value[rival] - found.value[leader])
    )
    disturbed = sum(run.disturbed for side in runs for run in side)
    line = (
        f"two servers of one model: {rival} is {ratio:.4f}x as fast as {leader} ({low:.4f} to "
        f"{high:.4f}), {disturbed} of {sum(map(len, runs))} requests disturbed"
    )
    return Study((line,), low <= 1 <= high)
