"""Acceptance of an iq1_kt draft by replay against ik's own count of it, on the same prompts.

Live runs go through ``llama-server``; replay is of one trace, recorded by the same engine, with
the simulation of that loop (docs/internals/scoring.md#profiles). Not needed where COOK_ENGINE_IK
names no build: the study then says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.study import Study, empty_executor
from cook.build.layout import Configuration, Layout
from cook.build.prepare import prepare
from cook.engines.base import DraftSettings
from cook.graph.execute import Executor
from cook.recipe.load import parse_recipe
from cook.scoring.simulate import Positions, Profile, simulate
from cook.steps.replay import replies

MOST_POINTS = 1.0
LEAST_DRAFTED = 4000

RECIPE = """\
version: 1
name: agreement
engine: ik_llama.cpp
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 60, args: {threads: 1}}
quants:
  - name: IQ1_KT
    type: IQ1_KT
    rules:
      - {attention: iq6_k}
      - {dense_ffn: iq5_ks}
      - {shared_experts: iq5_ks}
      - {routed_experts: iq1_kt}
      - {embeddings: iq4_k}
      - {output: iq6_k}
score:
  method: METHOD
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
LIMIT
  max_tokens: TOKENS
  context: 2048
  draft: {n_max: LENGTHS, args: {threads: 1}}
"""


@dataclass(frozen=True)
class Agreement:
    """Counts over the same prompts, (drafted, accepted) of each side.

    ``exact`` of ``requests`` have both counts equal.
    """

    n_max: int
    requests: int
    exact: int
    live: tuple[int, int]
    replayed: tuple[int, int]

    @property
    def points(self) -> float:
        """Acceptance by replay minus live, in percentage points."""
        (ours, accepted), (theirs, taken) = self.replayed, self.live
        return 100 * (accepted / ours - taken / theirs)

    def __str__(self) -> str:
        shares = [f"{a}/{d} = {100 * a / d:.2f} %" for d, a in (self.live, self.replayed)]
        return (
            f"llama-server n_max={self.n_max}: live {shares[0]}, replay {shares[1]}: "
            f"{self.points:+.2f} points; both counts equal on {self.exact} of {self.requests} "
            "requests"
        )


def ik_agreement() -> Study:
    """All demo prompts, replies of 128 tokens."""
    if not os.environ.get("COOK_ENGINE_IK"):
        return Study(("agreement on ik: not measured, COOK_ENGINE_IK names no build",), within=True)
    with empty_executor() as executor:
        found = agreements(executor, limit=None, tokens=128, n_max=(4, 8))
    return Study(
        tuple(map(str, found)),
        all(abs(a.points) <= MOST_POINTS and a.live[0] >= LEAST_DRAFTED for a in found),
    )


def agreements(
    executor: Executor, *, limit: int | None, tokens: int, n_max: tuple[int, ...]
) -> list[Agreement]:
    """Every draft length; ``limit`` None: every demo prompt.

    The first failure of a step is raised.
    """
    replay = _layout("replay", limit, tokens, n_max)
    texts = _texts(executor, replay, tokens)
    layout = _layout("live", limit, tokens, n_max)
    executor.run([c.live for c in layout.grid])
    _refuse_failed(executor)
    return [_compared(executor, c, texts) for c in layout.grid]


def _layout(method: str, limit: int | None, tokens: int, n_max: tuple[int, ...]) -> Layout:
    text = (
        RECIPE.replace("METHOD", method)
        .replace("LIMIT\n", "" if limit is None else f"  limit: {limit}\n")
        .replace("TOKENS", str(tokens))
        .replace("LENGTHS", str(list(n_max)))
    )
    loaded = parse_recipe(text, Path("agreement.yaml").absolute())
    return prepare(loaded, engines=["ik"], threads=1).layouts[0]


def _texts(executor: Executor, layout: Layout, tokens: int) -> dict[str, Positions]:
    plan = layout.forecast
    assert plan is not None, "asked for"
    steps = plan.drafts[0].replays
    executor.run([plan.trace, *steps])
    _refuse_failed(executor)
    trace = executor.outcomes.artifact(plan.trace)
    return {
        head.id: positions
        for step in steps
        for head, positions in replies(
            step, trace, executor.outcomes.artifact(step), n_predict=tokens, context=2048
        )
    }


def _compared(
    executor: Executor, configuration: Configuration, texts: Mapping[str, Positions]
) -> Agreement:
    settings = configuration.settings
    assert settings is not None, "the grid has drafts only"
    live: list[tuple[int, int]] = []
    ours: list[tuple[int, int]] = []
    outcome = executor.outcomes.result(configuration.live)
    for run in outcome.runs if outcome is not None else ():
        counted = simulate(texts[run.id], DraftSettings(settings.n_max), Profile.IK_2026_08)
        live.append((run.draft_n or 0, run.draft_n_accepted or 0))
        ours.append((counted.draft_n, counted.draft_n_accepted))
    return Agreement(
        n_max=settings.n_max,
        requests=len(live),
        exact=sum(a == b for a, b in zip(live, ours, strict=True)),
        live=(sum(d for d, _ in live), sum(a for _, a in live)),
        replayed=(sum(d for d, _ in ours), sum(a for _, a in ours)),
    )


def _refuse_failed(executor: Executor) -> None:
    for failure in executor.outcomes.failures.values():
        raise failure.error
