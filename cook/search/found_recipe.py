"""The recipe that a search writes: the one it was given, with the mix that was found as a quant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cook.engines.base import Engine
from cook.errors import InternalError
from cook.formats.quant_types import Flavour, ftype_by_name
from cook.job.locate import ModelFile
from cook.recipe.engine_rules import to_engine_rules
from cook.recipe.load import LoadedRecipe, parse_recipe
from cook.recipe.rules import ModelTensors, Resolution
from cook.search.space import Space

_HEADER = """\
# `cook search` wrote this: the recipe it was given, and the mix that it found as the last quant.
# Build it, and every quant is compared with the others: cook build {file}
"""


def with_quant(
    loaded: LoadedRecipe,
    name: str,
    types: Mapping[str, str],
    space: Space,
    model: ModelFile,
    engine: Engine,
    path: Path,
) -> str:
    """The text of ``loaded`` with a quant called ``name`` in which tensors have ``types``; to be
    kept in ``path``.

    Its rules name whole groups where one type holds throughout, else tensors.
    """
    import yaml

    document = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    for quant in document.get("quants", []):
        if "rules" in quant:
            quant["rules"] = [{r["selector"]: r["type"]} for r in quant["rules"]]
    found = {
        "name": name,
        "type": base_type(types, space, engine),
        "rules": [{selector: type_name} for selector, type_name in rules(types, space)],
    }
    document["quants"] = [*document.get("quants", []), found]
    ordered = {"version": document.pop("version"), "name": document.pop("name", loaded.recipe.name)}
    body = yaml.safe_dump({**ordered, **document}, sort_keys=False, allow_unicode=True, width=100)
    text = _HEADER.format(file=path.name) + body
    _prove(text, path, name, types, model, engine)
    return text


def rules(types: Mapping[str, str], space: Space) -> list[tuple[str, str]]:
    """(selector, type) of every tensor that the space has."""
    found: list[tuple[str, str]] = []
    groups: dict[str, list[str]] = {}
    for tie in space.ties:
        groups.setdefault(tie.group, []).extend(t.name for t in tie.tensors)
    for group, names in groups.items():
        common = {types[name] for name in names}
        if len(common) == 1:
            found.append((group, common.pop()))
            continue
        of_group = {name: types[name] for name in names}
        others = dict.fromkeys((n for g, more in groups.items() if g != group for n in more))
        resolution = Resolution({**of_group, **others}, {}, frozenset())
        found += [(rule.pattern, rule.type) for rule in to_engine_rules(resolution)]
    return found


def base_type(types: Mapping[str, str], space: Space, engine: Engine) -> str:
    """The base type that the file is said to have: of the type of most of its weights, where that
    asks for no imatrix itself."""
    weights: dict[str, int] = {}
    for tie in space.ties:
        for tensor in tie.tensors:
            weights[types[tensor.name]] = weights.get(types[tensor.name], 0) + tensor.elements
    for type_name in sorted(weights, key=lambda t: -weights[t]):
        own = type_name.upper()
        for name in sorted(engine.facts.ftypes, key=lambda n: (n != own, len(n), n)):
            base = ftype_by_name(name)
            if base.default == type_name and Flavour(engine.flavour) not in base.imatrix:
                return base.name
    return "Q8_0"


def _prove(
    text: str, path: Path, name: str, types: Mapping[str, str], model: ModelFile, engine: Engine
) -> None:
    """InternalError unless the quant of the recipe is just the mix."""
    quant: Any = next(q for q in parse_recipe(text, path).quants if q.name == name)
    tensors = ModelTensors(model.file.tensors, model.file.architecture)
    resolved = tensors.resolve(quant, engine.flavour).types
    wrong = [tensor for tensor, wanted in types.items() if resolved[tensor] != wanted]
    if wrong:
        raise InternalError(f"the recipe that was written has another type for {wrong[0]}")
