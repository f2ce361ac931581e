"""The recipe described from its models: JSON Schema for editors, and the reference in Markdown."""

from __future__ import annotations

import inspect
import json
import types
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cook.recipe.groups import MEANING, MTP_PARTS

BY_FILE = {"name": "the file's"}
"""Keys of a recipe that its file's name stands in for (``cook.recipe.load.parse_recipe``)."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a recipe."""
    from cook.recipe.schema import Recipe

    schema = Recipe.model_json_schema(mode="validation")
    schema["required"] = [name for name in schema["required"] if name not in BY_FILE]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cook recipe, version 1",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def schema_text() -> str:
    """The schema as committed: indented JSON with a final newline."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def markdown() -> str:
    """The whole reference: every key of every part, its type, bounds, default and meaning."""
    from cook.recipe.schema import Recipe, RuleSpec

    parts = [_INTRODUCTION, "## Tensor groups\n", "| group | tensors |\n|---|---|"]
    parts += [
        f"| `{group}` | {_cell(meaning)} |"
        for group, meaning in (*MEANING.items(), *MTP_PARTS.items())
    ]
    parts.append("")
    for path, model in _sections(Recipe):
        title = f"`{path}`" if path else "The recipe"
        parts.append(f"## {title}\n\n{inspect.cleandoc(model.__doc__ or '')}\n")
        if model is RuleSpec:
            parts.append("```yaml\n- attention: q8_0\n- 're:blk\\.[0-3]\\.ffn_down': q6_K\n```\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|")
        filled = BY_FILE if model is Recipe else {}
        parts += [_row(name, field, filled.get(name)) for name, field in model.model_fields.items()]
        parts.append("")
    return "\n".join(parts)


_INTRODUCTION = """# Recipe reference

A recipe is one YAML file. Unknown and duplicate keys are errors; so are tags, merge keys and a
second document. Plain scalars follow YAML 1.2: only `true` and `false` are booleans. Paths are
relative to the recipe; `imatrix/...` also finds the corpora that ship with cook, and
`demo://...` the demo's files.

A rule is `selector: type`. The first rule that hits a tensor decides. A selector that is a group's
name means the group; any other is a pattern searched in the tensor's name, in the part of
ECMAScript that both engines read: literals, `.`, classes, `\\d \\w \\s \\b`, groups `(...)` and
`(?:...)`, `(?!...)`, `|`, `* + ? {n,m}`, `^` and `$`. cook never sends these patterns to an
engine: it sends the tensors' names, so both engines give every tensor the same type.
"""


def _sections(root: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    """Every model once, with the path by which it is first reached, in the recipe's order."""
    found: list[tuple[str, type[BaseModel]]] = []
    seen: set[type[BaseModel]] = set()

    def visit(path: str, model: type[BaseModel]) -> None:
        if model in seen:
            return
        seen.add(model)
        found.append((path, model))
        for name, field in model.model_fields.items():
            for inner in _models(field.annotation):
                listed = "[]" if "tuple" in str(field.annotation) else ""
                visit(f"{path}.{name}{listed}".lstrip("."), inner)

    visit("", root)
    return found


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [m for arg in typing.get_args(annotation) for m in _models(arg)]


def _row(name: str, field: FieldInfo, default: str | None) -> str:
    meaning = _cell(inspect.cleandoc(field.description or ""))
    return f"| `{name}` | {_cell(_type(field))} | {default or _default(field)} | {meaning} |"


def _type(field: FieldInfo) -> str:
    from pydantic import TypeAdapter

    annotation: Any = field.annotation
    if field.metadata:
        annotation = typing.Annotated[annotation, *field.metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return _schema_words(adapter.json_schema(mode="validation"))


def _schema_words(schema: dict[str, Any]) -> str:
    if "$ref" in schema or schema.get("properties"):
        return "mapping"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        words = [_schema_words(s) for s in schema["anyOf"] if s.get("type") != "null"]
        if len(words) == 2 and words[1] == f"list of {words[0]}":
            return f"{words[0]}; one or a list"
        return " or ".join(dict.fromkeys(words))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_schema_words(schema.get('items', {}))}"
    if kind == "object":
        extra = schema.get("additionalProperties")
        return f"mapping to {_schema_words(extra)}" if isinstance(extra, dict) else "mapping"
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "true/false"}
    return names.get(str(kind), "value") + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    words = [
        f"{sign} {schema[key]:,}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return f" {', '.join(words)}" if words else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if value is None or value == () or isinstance(value, BaseModel):
        return "-"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(v) for v in value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
