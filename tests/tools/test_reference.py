"""The reference dealing gives every candidate as many requests, and says how they compare."""

from pathlib import Path

import pytest

from tools.reference import reference

RECIPE = """\
version: 1
name: few
drafts: [{name: draft, source: "demo://draft-f16.gguf"}]
score:
  target: {source: demo://target.gguf, args: {threads: 1}}
  prompts: demo
  limit: 3
  max_tokens: 8
  context: 2048
  rivals: [ngram-simple]
"""


@pytest.mark.engine
def test_all_are_dealt_all_prompts_in_every_pass(tmp_path: Path) -> None:
    recipe = tmp_path / "few.yaml"
    recipe.write_text(RECIPE)
    found = reference(recipe, "ngram-simple", ["no draft", "of another recipe"], minutes=1e-6)
    (name, other), *more = found["others"].items()
    assert (found["pick"], name, more) == ("ngram-simple", "no draft", [])
    assert (found["passes"], other["requests"], found["together"]) == (1, 3, True)
    assert other["low"] < other["ratio"] < other["high"]
    assert found["figure"] > 0
