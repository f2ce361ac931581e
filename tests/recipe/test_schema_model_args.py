"""Placement as a recipe says it: the same keys for target and draft, nothing of cook's own."""

from __future__ import annotations

from dataclasses import fields

import pytest
from pydantic import ValidationError

from cook.engines.base import ModelArgs
from cook.recipe.schema import BaselineSpec, DraftSpec, ModelArgsSpec, TargetSpec


def test_everything_that_an_engine_takes_can_be_said() -> None:
    assert set(ModelArgsSpec.model_fields) == {f.name for f in fields(ModelArgs)}
    for part in (TargetSpec, DraftSpec, BaselineSpec):
        assert part.model_fields["args"].annotation is ModelArgsSpec


@pytest.mark.parametrize(
    "flag",
    ["--port", "-m", "--spec-type", "--spec-draft-n-max=4", "--draft-params", "-ot", "--ctx-size"],
)
def test_what_cook_says_itself_is_no_raw_flag(flag: str) -> None:
    with pytest.raises(ValidationError, match="is set by"):
        ModelArgsSpec(extra=(flag,))
    assert ModelArgsSpec(extra=("--mlock", "1")).extra == ("--mlock", "1")
