"""A given quant of published tensors is judged as what it is, not as it would be quantized here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.process.supervisor import ask
from cook.graph.store import Store
from tests.hub.shards import NAMES, repository
from tests.search.whole import run

RECIPE = """\
version: 1
name: small
model: {source: "demo://draft-f16.gguf"}
quants:
  - name: theirs
    type: Q8_0
    mixture: pure
    tensors_from: {publisher: Thireus, model: tiny}
score:
  target: {source: "demo://target-q8_0.gguf", args: {threads: 1}}
  prompts: demo
  categories: [docstring, tests, literal]
  limit: 12
  max_tokens: 16
  context: 2048
  draft: {n_max: [2], args: {threads: 1}}
"""


@pytest.mark.engine
def test_the_final_reads_the_publishers_tensors(hub: Any, bundled: Any, tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    program = next(f for f in bundled.files if f.name == "llama-quantize")
    model = Path(__file__).parents[2] / "cook" / "demo" / "draft-f16.gguf"
    ask(str(program), "--pure", str(model), str(whole), "Q8_0", env=bundled.environment()).check()
    shards = tmp_path / "shards"
    shards.mkdir()
    hub.add(NAMES.repository("q8_0"), repository(shards, whole, "q8_0", imatrix="ab" * 32))
    home = tmp_path / "search"
    home.mkdir()
    (home / "small.yaml").write_text(RECIPE)
    assert run(home, "--size", "4MiB", "--budget", "4", "--type", "q8_0", "--type", "q4_K") == 0
    replayed = [a for a in Store(home / "store").entries() if a.kind == "variant"]
    theirs = [a for a in replayed if any(n.startswith("published ") for n in a.made_from or ())]
    assert len(theirs) == 1, "one of the final, and no other"
