"""pydantic's validation errors in a recipe's words, each at its place with a suggestion."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from cook.documents.tree import Keys, Locations, Node, ScalarNode
from cook.errors import Problem
from cook.removed import removed_key

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_ELSEWHERE = {
    "revision": "write it in the source: hf://org/name@revision",
    "temp": "the key is `temperature`",
    "ngl": "the key is `n_gpu_layers`",
    "threads": "threads go into `args:`",
    "pure": "write `mixture: pure`",
    "ctx": "the key is `context`",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list (`- item` on each line, or [item, item])",
    "list_type": "a list (`- item` on each line, or [item, item])",
    "dict_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "model_attributes_type": "a mapping (`key: value`)",
}


def problems_of(
    error: ValidationError, locations: Locations, model: type[BaseModel]
) -> tuple[Problem, ...]:
    """Every fault in ``error``, for a document that ``model`` was to describe."""
    return tuple(_problem(details, locations, model) for details in error.errors())


def _problem(details: ErrorDetails, locations: Locations, model: type[BaseModel]) -> Problem:
    kind, keys = details["type"], tuple(details["loc"])
    ctx: Mapping[str, Any] = details.get("ctx") or {}
    if kind == "missing":
        return locations.at(*keys[:-1]).problem(f"missing key `{keys[-1]}`")
    if kind == "extra_forbidden":
        hint = removed_key(keys) or _unknown_key_hint(str(keys[-1]), _keys_at(model, keys[:-1]))
        return locations.key_at(*keys).problem(f"unknown key `{keys[-1]}`", hint=hint)
    node, _ = locations.find(keys)
    at = locations.at(*keys)
    named = [key for key in keys if isinstance(key, str) and key != "[key]"]
    what = f"`{named[-1]}`" if named else "the recipe"
    if kind == "cook":
        shift = ctx["offset"]
        if shift and isinstance(node, ScalarNode):
            # Exact in plain text, which is all that patterns are written in.
            at = type(at)(at.file, at.line, at.column + shift + (0 if node.plain else 1))
        text = f"{what} {ctx['text']}" if ctx["text"].startswith("lists") else ctx["text"]
        return at.problem(text, hint=ctx["hint"])
    if kind == "literal_error":
        return at.problem(*_literal(what, ctx["expected"], node))
    if kind in _KINDS:
        return at.problem(f"{what} must be {_KINDS[kind]}", hint=_kind_hint(kind, node))
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return at.problem(f"{what} must be {words} {ctx[bound]:g}")
    if kind == "string_pattern_mismatch":
        hint = "letters, digits and . _ + - only, at most 64" if keys[-1] in _NAMES else None
        return at.problem(f"{what} has characters that are not allowed", hint=hint)
    if kind in ("too_long", "string_too_long"):
        return at.problem(f"{what} is longer than {ctx['max_length']}")
    if kind in ("too_short", "string_too_short"):
        return at.problem(f"{what} is empty")
    return at.problem(f"{what}: {details['msg']}")


_NAMES = ("name", "extends")


def _unknown_key_hint(key: str, known: tuple[str, ...]) -> str | None:
    if close := get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6):
        return f"did you mean `{close[0]}`?"
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    return f"known here: {', '.join(known)}" if known else None


def _literal(what: str, expected: str, node: Node | None) -> tuple[str]:
    options = [o.strip("'") for o in expected.replace(" or ", ", ").split(", ")]
    close: list[str] = []
    if isinstance(node, ScalarNode):
        close = get_close_matches(node.text, options, n=1)
    message = f"{what} must be {expected.replace(chr(39), '`')}"
    return (f"{message}; did you mean `{close[0]}`?" if close else message,)


def _kind_hint(kind: str, node: Node | None) -> str | None:
    if not isinstance(node, ScalarNode):
        return None
    text = node.text
    if kind == "string_type" and not isinstance(node.value, str) and node.value is not None:
        return f'quote it: "{text}"'
    if kind == "bool_type" and text.lower() in ("yes", "on", "no", "off", "y", "n"):
        return f"write {'true' if text.lower() in ('yes', 'on', 'y') else 'false'}"
    if kind in ("int_type", "float_type"):
        if node.value == text and not node.plain and text.replace(".", "", 1).isdigit():
            return f"without quotes: {text}"
        if isinstance(node.value, str) and (digits := text.replace("_", "")).isdigit():
            return f"write {digits}"
        if isinstance(node.value, float) and node.value.is_integer():
            return f"write {int(node.value)}"
    return None


def _keys_at(model: type[BaseModel], keys: Keys) -> tuple[str, ...]:
    """The keys that are known where ``keys`` lead to; none where any key may stand."""
    current: object = model
    for part in keys:
        candidates = [
            m for m in _models(current) if isinstance(part, int) or part in m.model_fields
        ]
        if not candidates:
            return ()
        if isinstance(part, str):
            current = candidates[0].model_fields[part].annotation
    found = _models(current)
    return tuple(found[0].model_fields) if found else ()


def _models(annotation: object) -> list[type[BaseModel]]:
    """Every model inside an annotation such as ``tuple[X, ...] | None``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [m for arg in typing.get_args(annotation) for m in _models(arg)]
