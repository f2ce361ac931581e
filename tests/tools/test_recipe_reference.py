"""The committed JSON Schema is fresh, and agrees with the loader."""

from __future__ import annotations

from typing import Any

import pytest

from cook.recipe.load import schema_file
from tools.recipe_reference import json_schema, markdown, schema_text


def test_committed_schema_is_fresh() -> None:
    assert schema_file().read_text("utf-8") == schema_text(), "run `make docs`"


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "name": "x", "scroe": {}},
        {"version": 2, "name": "x"},
        {"name": "x"},
        {
            "version": 1,
            "name": "x",
            "quants": [{"name": "A", "rules": [{"a": "q8_0", "b": "f16"}]}],
        },
        {"version": 1, "name": "x", "score": {"target": {"source": "a"}, "draft": {"n_max": 0}}},
    ],
)
def test_it_refuses_what_the_loader_refuses(document: dict[str, object]) -> None:
    assert list(validator().iter_errors(document))


def test_every_field_is_documented() -> None:
    def undocumented(schema: dict[str, Any]) -> list[str]:
        return [k for k, v in schema.get("properties", {}).items() if not v.get("description")]

    schema = json_schema()
    parts = {"Recipe": schema, **schema["$defs"]}
    parts.pop("RuleSpec")
    missing = {name: undocumented(part) for name, part in parts.items()}
    assert not {name: keys for name, keys in missing.items() if keys}


def test_reference_names_every_key() -> None:
    text = markdown()
    schema = json_schema()
    for name, part in {"Recipe": schema, **schema["$defs"]}.items():
        if name == "RuleSpec":
            continue
        for key in part.get("properties", {}):
            assert f"| `{key}` |" in text, (name, key)
    assert "| value |" not in text
