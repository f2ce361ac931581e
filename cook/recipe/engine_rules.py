"""A resolution as rules that give the same type to every tensor on both engines.

The engines differ: llama.cpp lower-cases a pattern and splits at its first ``=``; ik splits at
commas, too; ``output`` also hits ``attn_output``; patterns are read by different ``std::regex``
builds. So the user's patterns are never sent. What is sent names the tensors: anchored, escaped,
free of commas and ``=``, one rule for each type and set of layers, and matched again here in
both engines' ways before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from cook.errors import InputError

if TYPE_CHECKING:
    from cook.engines.base import TypeRule
    from cook.recipe.rules import Resolution

MAX_PATTERN = 4096
"""Bytes of one pattern: far below the 128 KiB that one argument may have."""

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)", re.DOTALL)


def to_engine_rules(resolution: Resolution) -> tuple[TypeRule, ...]:
    """Rules for a ``QuantizeJob`` on either engine, in an order that does not matter.

    Tensors that the engine keeps, or whose type its mixture decides, have no rule and are hit
    by none. Patterns hold no comma, no ``=``, no blank and no upper case.
    """
    from cook.engines.base import TypeRule

    wanted = {
        name: type_name
        for name, type_name in resolution.types.items()
        if type_name is not None and name not in resolution.kept
    }
    free = [name for name, type_name in resolution.types.items() if type_name is None]
    rules = tuple(TypeRule(pattern, type_name) for pattern, type_name in _compact(wanted, free))
    _verify(rules, wanted, free)
    return rules


def _compact(wanted: Mapping[str, str], free: Sequence[str]) -> list[tuple[str, str]]:
    """(pattern, type): one for each type and set of layers, tensors outside layers apart."""
    layers_of: dict[tuple[str, str], list[int]] = {}
    everywhere: dict[str, set[int]] = {}
    single: dict[str, list[str]] = {}
    for name in (*wanted, *free):
        if match := _BLOCK.fullmatch(name):
            layer, suffix = int(match[1]), match[2]
            everywhere.setdefault(suffix, set()).add(layer)
            if name in wanted:
                layers_of.setdefault((wanted[name], suffix), []).append(layer)
        elif name in wanted:
            single.setdefault(wanted[name], []).append(name)
    suffixes_of: dict[tuple[str, tuple[int, ...] | None], list[str]] = {}
    for (type_name, suffix), layers in layers_of.items():
        whole = len(layers) == len(everywhere[suffix])
        key = (type_name, None if whole else tuple(sorted(layers)))
        suffixes_of.setdefault(key, []).append(suffix)
    out = [
        (f"^{body}$", type_name)
        for type_name, names in single.items()
        for body in _alternations(names, MAX_PATTERN - 2)
    ]
    for (type_name, layer_set), suffixes in suffixes_of.items():
        if layer_set is None:
            numbers = ["[0-9]+"]
        else:
            numbers = list(_alternations(map(str, layer_set), MAX_PATTERN // 2))
        out += [
            (f"^blk\\.{number}\\.{body}$", type_name)
            for number in numbers
            for body in _alternations(suffixes, MAX_PATTERN // 2 - 16)
        ]
    return out


def _alternations(words: Iterable[str], limit: int) -> Iterable[str]:
    """``(?:a|b|c)``, as many as keep each within ``limit`` characters."""
    part: list[str] = []
    size = 4
    for word in sorted(set(words), key=lambda w: (len(w), w)):
        escaped = _escape(word)
        if part and size + len(escaped) + 1 > limit:
            yield _group(part)
            part, size = [], 4
        part.append(escaped)
        size += len(escaped) + 1
    if part:
        yield _group(part)


def _group(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"(?:{'|'.join(words)})"


def _escape(text: str) -> str:
    """``text`` as a pattern of plain bytes; what an engine would change or split at is ``.``."""
    out = []
    for byte in text.encode():
        char = chr(byte)
        if char.isascii() and (char.islower() or char.isdigit() or char in "_-"):
            out.append(char)
        elif char == ".":
            out.append("\\.")
        else:
            out.append(".")
    return "".join(out)


def _verify(rules: Sequence[TypeRule], wanted: Mapping[str, str], free: Sequence[str]) -> None:
    """Each engine's own matching, as is and lower-cased, comes to the types wanted."""
    names = (*wanted, *free)
    for spell in (str, str.lower):
        found: dict[str, str] = {}
        for rule in reversed(rules):  # the first that hits decides
            found |= dict.fromkeys(_hits(spell(rule.pattern), names), rule.type)
        for name in names:
            if found.get(name) != wanted.get(name):
                raise InputError(f"no engine rule can tell the tensor {name!r} from others")


@lru_cache(maxsize=4096)  # candidates of one source have most of their patterns in common
def _hits(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    search = re.compile(pattern, re.DOTALL).search
    return frozenset(name for name in names if search(name.encode().decode("latin-1")))
