"""The recipe's JSON Schema, for editors: ``python -m cook.recipe.json_schema [--check]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SCHEMA_FILE = Path(__file__).with_name("recipe.schema.json")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a recipe."""
    from cook.recipe.schema import Recipe

    schema = Recipe.model_json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cook recipe, version 1",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def schema_text() -> str:
    """The schema as committed: indented JSON with a final newline."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema, or with ``--check`` say (exit 1) whether the committed one is stale."""
    text = schema_text()
    if arguments == ["--check"]:
        fresh = SCHEMA_FILE.is_file() and SCHEMA_FILE.read_text("utf-8") == text
        if not fresh:
            sys.stderr.write(f"{SCHEMA_FILE} is stale: run python -m cook.recipe.json_schema\n")
        return 0 if fresh else 1
    SCHEMA_FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
