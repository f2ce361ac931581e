"""The committed JSON Schema is fresh, and agrees with the loader."""

from __future__ import annotations

import jsonschema
import pytest

from cook.recipe.load import schema_file
from tools.recipe_reference import json_schema, markdown, schema_text


def test_committed_schema_is_fresh() -> None:
    assert schema_file().read_text("utf-8") == schema_text(), "run `make docs`"


@pytest.mark.parametrize(
    "more",
    [
        {"scroe": {}},
        {"version": 2},
        {"quants": [{"name": "A", "rules": [{"a": "q8_0", "b": "f16"}]}]},
        {"score": {"target": {"source": "a"}, "draft": {"n_max": 0}}},
    ],
)
def test_it_refuses_what_the_loader_refuses(more: dict[str, object]) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors({"version": 1, "name": "x", **more}))


def test_every_field_is_documented_and_in_the_reference() -> None:
    text, schema = markdown(), json_schema()
    for name, part in {"Recipe": schema, **schema["$defs"]}.items():
        for key, field in part.get("properties", {}).items() if name != "RuleSpec" else ():
            assert field.get("description"), (name, key)
            assert f"| `{key}` |" in text, (name, key)
    assert "| value |" not in text
