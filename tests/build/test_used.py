"""What of a store a recipe would use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cook.build.used import Used
from cook.graph.store import Artifact


def test_steps_are_known_by_key_and_tensors_by_their_source() -> None:
    used = Used(frozenset({"k"}), frozenset({"sha256:1"}))
    step = Artifact(
        directory=Path("s"),
        kind="quantize",
        key="k",
        label="Q8_0",
        key_parts={},
        result={},
        files=(),
        seconds=1.0,
        created="2026",
        made_from={},
    )
    of_it = replace(step, kind="tensor", key="t", key_parts={"inputs": {"source": "sha256:1"}})
    assert used.covers(step)
    assert not used.covers(replace(step, key="other"))
    assert used.covers(of_it)
    assert not used.covers(replace(of_it, key_parts={"inputs": {"source": "sha256:2"}}))
    assert not used.covers(replace(of_it, key_parts={}))
