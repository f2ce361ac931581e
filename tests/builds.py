"""Whole builds of the demo pair, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.cli.main import main
from cook.record.record import Record, read_record

TINY = """\
version: 1
name: tiny
engine: bundled
model: {source: demo://draft-f16.gguf}
evaluate: {corpus: demo://data/evaluation.txt, context: 256, chunks: 2}
quants: [{name: Q4_0, type: Q4_0}]
score:
  method: live
  target: {source: demo://target-q8_0.gguf, args: {threads: 1}}
  prompts: demo
  categories: [docstring, literal]
  limit: 10
  max_tokens: 24
  context: 2048
  draft: {n_max: [4], args: {threads: 1}}
  live_budget: {minutes: 0.05}
pick: {maximize: decode_speed}
"""
"""One quant, measured and run live in seconds: the recipe of a night. Its budget, as that of most
recipes of the tests, is spent by the first block of prompts, which runs in any case."""


def build(home: Path, name: str, text: str, *arguments: str) -> Record:
    """``cook build home/NAME.yaml`` with ``home`` as COOK_HOME; ``text`` names its recipe NAME."""
    home.mkdir(parents=True, exist_ok=True)
    recipe = home / f"{name}.yaml"
    recipe.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        status = main(["build", str(recipe), "--threads", "1", *arguments])
    assert status == 0, f"exit status {status}"
    return read_record(home / "records" / f"{name}.json")
