"""A resolved recipe is a recipe, and asks for the same quants from anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.recipe.load import load_recipe, parse_recipe, resolved, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_resolve_to_themselves(name: str) -> None:
    loaded = load_recipe(name)
    again = parse_recipe(resolved(loaded), Path("/somewhere/else.yaml"))
    assert [(q.name, q.ftype, q.mixture, q.use_imatrix) for q in again.quants] == [
        (q.name, q.ftype, q.mixture, q.use_imatrix) for q in loaded.quants
    ]
    assert [[(r.selector, r.type) for r in q.rules] for q in again.quants] == [
        [(r.selector, r.type) for r in q.rules] for q in loaded.quants
    ]
    ours, theirs = (r.recipe.model_dump(exclude={"quants", "sweep"}) for r in (loaded, again))
    assert ours == theirs


def test_sweeps_and_inheritance_are_written_out() -> None:
    text = """\
version: 1
name: swept
model: {source: model.gguf}
quants:
  - {name: BASE, type: Q4_0, rules: [{attention: q8_0}]}
  - {name: CHILD, extends: BASE, imatrix: false, rules: [{'re:attention': q6_K}]}
sweep:
  extends: BASE
  over: {output: [q4_0, 'q8_0']}
"""
    loaded = parse_recipe(text, Path("/base/swept.yaml"))
    written = resolved(loaded)
    assert "extends" not in written
    assert "sweep" not in written
    assert "/base/model.gguf" in written
    again = parse_recipe(written, Path("x.yaml"))
    assert [str(r) for r in again.quants[1].rules] == ["re:attention: q6_K", "attention: q8_0"]
    assert [q.name for q in again.quants] == [q.name for q in loaded.quants]
    assert len(again.quants) == 4
