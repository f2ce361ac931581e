"""A given quant of published tensors is judged as what it is, not as it would be quantized here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cook.engines.process.supervisor import ask
from cook.graph.store import Store
from tests.hub.shards import NAMES, repository
from tests.search.whole import RECIPE, run

GIVEN = """\
  - {name: Q4_0, type: Q4_0, mixture: pure}
  - {name: Q8_0, type: Q8_0}
"""
THEIRS = """\
  - {name: theirs, type: Q8_0, mixture: pure, tensors_from: {publisher: Thireus, model: tiny}}
"""


@pytest.mark.engine
def test_the_final_reads_the_publishers_tensors(
    hub: Any, bundled: Any, home: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole.gguf"
    program = next(f for f in bundled.files if f.name == "llama-quantize")
    model = Path(__file__).parents[2] / "cook" / "demo" / "draft-f16.gguf"
    ask(str(program), "--pure", str(model), str(whole), "Q8_0", env=bundled.environment()).check()
    shards = tmp_path / "shards"
    shards.mkdir()
    hub.add(NAMES.repository("q8_0"), repository(shards, whole, "q8_0", imatrix="ab" * 32))
    small = RECIPE.replace(GIVEN, THEIRS).replace("limit: 18", "limit: 12")
    (home / "small.yaml").write_text(
        small.replace("max_tokens: 24", "max_tokens: 16").replace("[2, 4]", "[2]")
    )
    assert run(home, "--size", "4MiB", "--budget", "4", "--type", "q8_0", "--type", "q4_K") == 0
    replayed = [a for a in Store(home / "store").entries() if a.kind == "variant"]
    theirs = [a for a in replayed if any(n.startswith("published ") for n in a.made_from or ())]
    assert len(theirs) == 1, "one of the final, and no other"
