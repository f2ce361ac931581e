"""A recipe from a command line: ``cook score --target T DRAFT.gguf ...`` without a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from cook.errors import InputError, RecipeError
from cook.formats.naming import model_stem
from cook.recipe.load import LoadedRecipe, load_recipe, parse_recipe
from cook.recipe.sources import OWN_HEAD

SOURCE_NAME = "source"
"""The candidate that a recipe's own source model is."""


def score_recipe(
    target: str | None,
    drafts: Sequence[str],
    recipe: Path | str | None,
    settings: Mapping[str, object],
    maximize: str | None = None,
    *,
    experts: Sequence[int] = (),
    unsafe_args: bool = False,
) -> LoadedRecipe:
    """The recipe that scores ``drafts``, or the quants of ``recipe``, against ``target``.

    ``settings`` are keys of ``score`` that replace the recipe's or the defaults, maps within
    them key by key; None and empty maps are "not given". ``maximize``: the pick's. ``experts``:
    numbers of active experts to try of each of ``drafts``.
    ``unsafe_args``: as :func:`cook.recipe.load.load_recipe`. InputError when there is nothing to
    score or nothing to score against.
    """
    given = {key: value for key, value in settings.items() if value not in (None, {})}
    if target is not None:
        given["target"] = _merged({"source": _absolute(target)}, given.get("target"))
    pick = {"maximize": maximize} if maximize else {}
    if recipe is not None:
        loaded = load_recipe(recipe, unsafe_args=unsafe_args)
        taken = [*(q.name for q in loaded.quants), *(d.name for d in loaded.recipe.drafts)]
        return _override(loaded, _named(drafts, taken, experts), given, pick)
    if target is None:
        raise InputError("no target", hint="--target TARGET.gguf, or --recipe with a score.target")
    if not drafts:
        raise InputError("no drafts", hint="name draft files, or a recipe with --recipe")
    document = {
        "version": 1,
        "name": "score",
        "drafts": _named(drafts, (), experts),
        "score": given,
        "pick": pick,
    }
    try:
        return parse_recipe(json.dumps(document, indent=1), Path.cwd() / "score.yaml")
    except RecipeError as error:
        raise of_command_line(error) from None


def of_command_line(error: RecipeError, text: str = "") -> InputError:
    """The first fault of a recipe made of a command line, at the option behind that line."""
    first = error.problems[0]
    line = text.splitlines()[first.line - 1] if text else ""
    words = line.partition(": ")[2].strip(' ",') or "these options"
    return InputError(f"{words}: {first.message}", hint=first.hint)


def _override(
    loaded: LoadedRecipe,
    drafts: Sequence[Mapping[str, object]],
    given: Mapping[str, object],
    pick: Mapping[str, object],
) -> LoadedRecipe:
    """``loaded`` with the command line's words in place of its own, checked again as a whole."""
    document = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    score = _merged(document.get("score") or {}, given)
    if "source" not in score.get("target", {}):
        raise InputError(f"{loaded.path}: has no score.target", hint="give --target TARGET.gguf")
    document["score"] = score
    document["pick"] = _merged(document.get("pick") or {}, pick)
    if drafts:
        document["drafts"] = [*document.get("drafts", []), *drafts]
    from pydantic import ValidationError

    from cook.recipe.schema import Recipe

    context = {"base": loaded.path.parent}
    try:
        checked = Recipe.model_validate(document, context=context, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{loaded.path} with these options: {where}: {first['msg']}") from None
    return replace(loaded, recipe=checked)


def _merged(own: Mapping[str, Any], given: object) -> dict[str, Any]:
    """``own`` with what is ``given`` in its place, maps key by key."""
    merged = dict(own)
    for key, value in given.items() if isinstance(given, Mapping) else ():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) else value
    return merged


def _named(
    drafts: Sequence[str], taken: Sequence[str], experts: Sequence[int]
) -> list[dict[str, object]]:
    """Every file with its own name; a name that is taken (as the source's) gets a number."""
    names = {*taken, SOURCE_NAME}
    found: list[dict[str, object]] = []
    for draft in drafts:
        own = draft == OWN_HEAD
        stem = "head" if own else model_stem(Path(draft.rsplit("/", 1)[-1]))
        numbered = (f"{stem}-{number}" for number in count(2))
        name = next(name for name in chain([stem], numbered) if name not in names)
        names.add(name)
        tried = {"experts": list(experts)} if experts else {}
        found.append({"name": name, "source": draft if own else _absolute(draft), **tried})
    return found


def _absolute(source: str) -> str:
    if "://" in source:
        return source
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return str(path)
