"""The demo pair's drafts, prompts and steps, as the studies use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.recipe.load import parse_recipe
from cook.steps.menu import Menu
from cook.steps.prepare import prepare

RECIPE = """\
version: 1
name: study
model: {source: "demo://draft-f16.gguf"}
imatrix: {corpus: "demo://data/calibration.txt", chunks: 60, args: {threads: 1}}
include_source: true
quants:
  - {name: Q8_0, type: Q8_0}
  - {name: Q6_K, type: Q6_K}
  - {name: Q4_K_M, type: Q4_K_M}
  - {name: Q3_K_S, type: Q3_K_S}
  - {name: Q2_K, type: Q2_K}
  - {name: IQ2_XXS, type: IQ2_XXS}
  - name: IQ1_S
    type: IQ1_S
    rules:
      - {attention: q2_K}
      - {dense_ffn: iq2_xxs}
      - {shared_experts: iq2_xxs}
      - {routed_experts: iq1_s}
      - {embeddings: q2_K}
      - {output: q4_K}
score:
  method: METHOD
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1, flash_attention: false}}
  prompts: demo
  categories: [docstring, tests, prose, class, function-body, literal]
  limit: LIMIT
  max_tokens: TOKENS
  context: 2048
  draft: {n_max: NMAX, args: {threads: 1}}
pick: {maximize: decode_speed}
"""


def study_menu(
    method: str,
    *,
    limit: int,
    tokens: int,
    n_max: tuple[int, ...],
    quants: tuple[str, ...] | None = None,
) -> Menu:
    """The menu of the study's eight drafts, or of those named."""
    text = (
        RECIPE.replace("METHOD", method)
        .replace("LIMIT", str(limit))
        .replace("TOKENS", str(tokens))
        .replace("NMAX", str(list(n_max)))
    )
    loaded = parse_recipe(text, Path("study.yaml").absolute())
    if quants is not None:
        kept = tuple(q for q in loaded.quants if q.name in quants)
        recipe = loaded.recipe.model_copy(update={"include_source": "source" in quants})
        loaded = replace(loaded, quants=kept, recipe=recipe)
    return prepare(loaded, engines=["bundled"]).menus[0]
