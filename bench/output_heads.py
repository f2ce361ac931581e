"""Output heads of a ready draft: what replay makes of a live run's tokens, and the server's counts.

Not a timing, and of an engine that returns token ids, which ik does not. What one more such
candidate takes is in ``active-experts-cost``.
"""

from __future__ import annotations

from pathlib import Path

from bench.active_experts import ENGINE
from bench.counts import counted
from bench.study import Study, empty_executor
from cook.build.layout import Layout
from cook.build.prepare import prepare
from cook.recipe.load import parse_recipe

MOST_POINTS = 0.5
REQUESTS = 40
RECIPE = f"""\
version: 1
name: heads
drafts:
  - {{name: draft, source: "demo://draft-f16.gguf", output: [f16, q8_0, q4_0, q2_K]}}
score:
  method: METHOD
  target: {{source: "demo://target-q8_0.gguf", args: {{threads: 1, flash_attention: false}}}}
  prompts: demo
  limit: {REQUESTS}
  max_tokens: 96
  context: 2048
  draft: {{n_max: 4, args: {{threads: 1}}}}
"""


def output_heads() -> Study:
    """Acceptance by the type of the output head, replay against live, request by request."""
    live, traced = (_layout(method) for method in ("live", "replay"))
    lines, within = [], True
    with empty_executor() as executor:
        for configuration, found in counted(executor, live, traced):
            draft = configuration.draft
            assert draft is not None, "the grid holds drafts"
            within &= abs(found.points) <= MOST_POINTS and found.requests == REQUESTS
            size = (draft.predicted_tensor_bytes or 0) / 1e6
            lines.append(f"  {configuration.name:28} {size:5.2f} MB: {found}")
    head = f"output heads on {ENGINE}, n_max 4, temperature 0: at most {MOST_POINTS} points"
    return Study((head, *lines), within)


def _layout(method: str) -> Layout:
    loaded = parse_recipe(RECIPE.replace("METHOD", method), Path("heads.yaml").absolute())
    return prepare(loaded, engines=[ENGINE]).layouts[0]
