"""The demo pair's drafts, prompts and steps, as the studies use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.build.layout import Layout
from cook.build.prepare import prepare
from cook.recipe.load import parse_recipe

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
  - {name: TQ1_0, type: TQ1_0, mixture: pure}
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
  target: {source: "TARGET", args: {threads: 1, flash_attention: false}}
  prompts: demo
PROMPTS
  max_tokens: TOKENS
  context: CONTEXT
  draft: {n_max: NMAX, args: {threads: 1}}
pick: {maximize: decode_speed}
"""

UNPACKED_TARGET = "demo://target.gguf"
"""The demo's."""
Q8_0_TARGET = "demo://target-q8_0.gguf"
"""The fastest: what can be saved on it is least."""
EIGHT = ("source", "Q8_0", "Q6_K", "Q4_K_M", "Q3_K_S", "Q2_K", "IQ2_XXS", "IQ1_S")
DOWN_TO_ONE_BIT = ("Q8_0", "Q4_K_M", "Q2_K", "IQ2_XXS", "IQ1_S", "TQ1_0")
SHORT = """\
  categories: [docstring, tests, prose, class, function-body, literal]
"""


def study_layout(
    method: str,
    *,
    limit: int | None,
    tokens: int,
    n_max: tuple[int, ...],
    quants: tuple[str, ...] = EIGHT,
    target: str = Q8_0_TARGET,
    engine: str = "bundled",
) -> Layout:
    """The layout of the drafts named; ``limit`` None: every prompt, else short ones."""
    text = (
        RECIPE.replace("METHOD", method)
        .replace("PROMPTS", "" if limit is None else SHORT + f"  limit: {limit}")
        .replace("CONTEXT", "4096" if limit is None else "2048")
        .replace("TOKENS", str(tokens))
        .replace("NMAX", str(list(n_max)))
        .replace("TARGET", target)
    )
    loaded = parse_recipe(text, Path("study.yaml").absolute())
    kept = tuple(q for q in loaded.quants if q.name in quants)
    recipe = loaded.recipe.model_copy(update={"include_source": "source" in quants})
    loaded = replace(loaded, quants=kept, recipe=recipe)
    return prepare(loaded, engines=[engine]).layouts[0]
