"""A recipe from a command line: ``cook score --target T DRAFT.gguf ...`` without a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cook.errors import InputError
from cook.formats.naming import model_stem
from cook.recipe.load import LoadedRecipe, load_recipe, parse_recipe


def score_recipe(
    target: str | None,
    drafts: Sequence[str],
    recipe: Path | str | None,
    settings: dict[str, object],
) -> LoadedRecipe:
    """The recipe that scores ``drafts``, or the quants of ``recipe``, against ``target``.

    ``settings`` are keys of ``score`` that replace the recipe's or the defaults; None is
    "not given". InputError when there is nothing to score or nothing to score against.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if recipe is not None:
        return _override(load_recipe(recipe), target, drafts, given)
    if target is None:
        raise InputError("no target", hint="--target TARGET.gguf, or --recipe with a score.target")
    if not drafts:
        raise InputError("no drafts", hint="name draft files, or a recipe with --recipe")
    document = {
        "version": 1,
        "name": "score",
        "drafts": _named(drafts),
        "score": {"target": {"source": _absolute(target)}, **given},
    }
    return parse_recipe(json.dumps(document, indent=1), Path.cwd() / "score.yaml")


def _override(
    loaded: LoadedRecipe, target: str | None, drafts: Sequence[str], given: dict[str, object]
) -> LoadedRecipe:
    """``loaded`` with the command line's words in place of its own, checked again as a whole."""
    document = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    score = dict(document.get("score") or {})
    if target is not None:
        score["target"] = {**score.get("target", {}), "source": _absolute(target)}
    if "target" not in score:
        raise InputError(f"{loaded.path}: has no score.target", hint="give --target TARGET.gguf")
    if "draft" in given and isinstance(given["draft"], dict):
        given["draft"] = {**score.get("draft", {}), **given["draft"]}
    document["score"] = {**score, **given}
    if drafts:
        document["drafts"] = [*document.get("drafts", []), *_named(drafts)]
    from cook.recipe.schema import Recipe

    checked = Recipe.model_validate(document, context={"base": loaded.path.parent}, strict=False)
    return replace(loaded, recipe=checked)


def _named(drafts: Sequence[str]) -> list[dict[str, str]]:
    names: dict[str, int] = {}
    found = []
    for draft in drafts:
        name = model_stem(Path(draft.rsplit("/", 1)[-1]))
        names[name] = names.get(name, 0) + 1
        unique = name if names[name] == 1 else f"{name}-{names[name]}"
        found.append({"name": unique, "source": _absolute(draft)})
    return found


def _absolute(source: str) -> str:
    if "://" in source:
        return source
    return str(Path(source).expanduser().absolute())
