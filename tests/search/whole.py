"""Whole searches from the command line, on the demo pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.cli.main import main
from cook.record.search_record import SearchRecord, read_search_record

RECIPE = """\
version: 1
name: small
model: {source: "demo://draft-f16.gguf"}
quants:
  - {name: Q4_0, type: Q4_0, mixture: pure}
  - {name: Q8_0, type: Q8_0}
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  categories: [docstring, tests, literal]
  limit: 18
  max_tokens: 24
  context: 2048
  draft: {n_max: [2, 4], args: {threads: 1}}
"""
TYPES = ("--type", "q2_K", "--type", "q4_K", "--type", "q8_0")


def run(home: Path, *words: str, recipe: str = "small.yaml", command: str = "search") -> int:
    """``cook search`` (or another) in the folder ``home``, which is its store as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COOK_HOME", str(home))
        patch.chdir(home)
        return main([command, recipe, "--threads", "1", *words])


def searched(home: Path, *words: str, name: str = "small") -> SearchRecord:
    """The record of a search that succeeds."""
    before = set((home / "searches" / name).glob("*.json"))
    assert run(home, *words, recipe=f"{name}.yaml") == 0
    (path,) = set((home / "searches" / name).glob("*.json")) - before
    return read_search_record(path)
