"""How much room the reference logits are said to take before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cook.graph.step import Source
from cook.steps.draft_quality import DivergenceStep, PerplexityStep

ENGINE: Any = SimpleNamespace(name="e")
MODEL = Source(Path("/models/draft.gguf"), "sha256:aa", 1000)
CORPUS = Source(Path("/texts/corpus.txt"), "sha256:bb", 8192)
PLAIN = PerplexityStep(ENGINE, "draft", MODEL, CORPUS, context=512, chunks=4)


def test_only_kept_logits_take_room() -> None:
    assert PLAIN.predicted_bytes() == 0
    kept = replace(PLAIN, vocabulary_size=1000)
    assert kept.predicted_bytes() is not None
    # Half of each chunk is scored, 16 bits a token of the vocabulary, and a head of each position.
    assert kept.predicted_bytes() == pytest.approx(4 * 256 * 1000 * 2, rel=0.01)
    assert replace(kept, chunks=None).predicted_bytes() is None


def test_cost_grows_with_what_is_read() -> None:
    cost, more = PLAIN.cost(), replace(PLAIN, chunks=None).cost()
    assert more.computed_bytes == cost.computed_bytes, "four chunks are all of its text"
    fewer = replace(PLAIN, chunks=2).cost()
    assert fewer.computed_bytes == cost.computed_bytes / 2
    against = DivergenceStep(ENGINE, "draft", MODEL, replace(PLAIN, vocabulary_size=1000))
    assert against.cost() == cost
