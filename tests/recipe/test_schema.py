"""Placement as a recipe says it: the same keys for target and draft, nothing of cook's own."""

from __future__ import annotations

from dataclasses import fields

from cook.engines.base import ModelArgs
from cook.recipe.schema import BaselineSpec, DraftSpec, ModelArgsSpec, TargetSpec


def test_everything_that_an_engine_takes_can_be_said() -> None:
    assert set(ModelArgsSpec.model_fields) == {f.name for f in fields(ModelArgs)}
    for part in (TargetSpec, DraftSpec, BaselineSpec):
        assert part.model_fields["args"].annotation is ModelArgsSpec
