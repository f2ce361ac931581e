"""Recipe files: read, check, and tell every fault at once, each with file, line and column."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cook.documents.spec import NAME_PATTERN, one_or_many
from cook.documents.tree import Locations, read_text
from cook.errors import InputError, Problem, RecipeError
from cook.paths import data_dir, package_dir

if TYPE_CHECKING:
    from cook.documents.located import LocatedDocument
    from cook.recipe.rules import Quant
    from cook.recipe.schema import Recipe


NAMED = re.compile(NAME_PATTERN)
_NAME_LINE = re.compile(r"^name:.*\n", re.MULTILINE)
_SCHEMA_LINE = re.compile(r"^# yaml-language-server: \$schema=.*$", re.MULTILINE)


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe, its file, its exact text, its candidates, and where each part stands.

    ``unsafe_args``: the user's own word that raw flags may pass that cook would refuse.
    """

    recipe: Recipe
    path: Path
    text: str
    quants: tuple[Quant, ...]
    locations: Locations
    unsafe_args: bool = False

    @property
    def sha256(self) -> str:
        """SHA-256 of the recipe's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def load_recipe(path: Path | str, *, unsafe_args: bool = False) -> LoadedRecipe:
    """Read the recipe at ``path``, or the shipped recipe of that name.

    ``unsafe_args`` lets raw flags through that cook would refuse (``--allow-unsafe-args``).
    InputError when there is no such file; RecipeError with every fault otherwise.
    """
    found = find_recipe(path)
    return parse_recipe(read_text(found), found, unsafe_args=unsafe_args)


def find_recipe(name: Path | str) -> Path:
    """``name`` as a file, else the shipped recipe so called (with or without ``.yaml``)."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if (known := shipped.get(str(name).removesuffix(".yaml"))) is not None:
        return known
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a recipe")
    close = get_close_matches(str(name), list(shipped), n=1)
    hint = f"did you mean `{close[0]}`?" if close else "`cook recipes ls` lists those shipped"
    raise InputError(f"no recipe {name}", hint=hint)


def shipped_recipes() -> Mapping[str, Path]:
    """Name -> file of the recipes that come with cook, sorted by name."""
    return {p.stem: p for p in sorted(data_dir("recipes").glob("*.yaml"))}


def parse_recipe(text: str, path: Path, *, unsafe_args: bool = False) -> LoadedRecipe:
    """A recipe from its text; ``path`` names it in errors and anchors its relative paths.

    A recipe that says no name has its file's.
    """
    from cook.documents.located import yaml_document
    from cook.recipe.expand import expand
    from cook.recipe.raw_flags import written_flag_problems
    from cook.recipe.schema import Recipe

    document = yaml_document(text, path)
    if NAMED.fullmatch(path.stem):
        document.data.setdefault("name", path.stem)
    written = written_flag_problems(document.data, document.locations, unsafe=unsafe_args)
    document.problems.extend(written)
    recipe = document.validated(Recipe)
    if recipe is None:
        document.problems.extend(_expand_valid(document))
        raise document.fault()
    try:
        quants = expand(recipe, document.locations)
    except RecipeError as error:
        document.problems.extend(error.problems)
    if document.problems:
        raise document.fault()
    return LoadedRecipe(recipe, path, text, quants, document.locations, unsafe_args)


def _expand_valid(document: LocatedDocument) -> tuple[Problem, ...]:
    """Faults between the quants that are valid, to be reported with the faults in others."""
    from cook.recipe.expand import expand_parts
    from cook.recipe.schema import QuantSpec, SweepSpec

    data, context = document.data, document.context
    listed = data.get("quants", ())
    swept = one_or_many(data["sweep"]) if data.get("sweep") is not None else ()
    quants = _valid(QuantSpec, listed, context)
    sweeps = _valid(SweepSpec, swept, context)
    ready = data.get("drafts")
    drafts = {
        draft["name"]: index
        for index, draft in enumerate(ready if isinstance(ready, tuple) else ())
        if isinstance(draft, dict) and isinstance(draft.get("name"), str)
    }
    valid = {index for index, _ in quants}
    faulty = frozenset(
        str(item.get("name"))
        for index, item in enumerate(listed if isinstance(listed, tuple) else ())
        if isinstance(item, dict) and index not in valid
    )
    return expand_parts(quants, sweeps, document.locations, drafts, faulty)[1]


def _valid(model: type[Any], items: object, context: dict[str, Any]) -> list[tuple[int, Any]]:
    found = []
    for index, item in enumerate(items if isinstance(items, tuple) else ()):
        try:
            found.append((index, model.model_validate(item, context=context)))
        except ValidationError:
            continue  # reported already, at its place, by the whole recipe's validation
    return found


def resolved_text(loaded: LoadedRecipe) -> str:
    """The recipe as YAML that needs no inheritance, sweep, default or base folder; itself a recipe.

    Of a shipped one as :func:`text_to_keep`: without its name.
    """
    import yaml

    document: dict[str, Any] = _without_empty(
        loaded.recipe.model_dump(mode="json", exclude_none=True)
    )
    document.pop("sweep", None)
    if loaded.recipe.evaluate is not None:  # null is the whole text
        document["evaluate"]["chunks"] = loaded.recipe.evaluate.chunks
    draft = loaded.recipe.score.draft if loaded.recipe.score is not None else None
    if draft is not None and (draft.args.cache_type_k or draft.args.cache_type_v):
        document["score"]["draft"].pop("cache_types", None)  # a default then, and one too many
    if is_shipped(loaded):
        document.pop("name", None)
    if loaded.quants:
        document["quants"] = [_quant(quant) for quant in loaded.quants]
    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    return f"{schema_comment()}\n# {loaded.recipe.name}, resolved\n{text}"


def text_to_keep(loaded: LoadedRecipe) -> str:
    """The recipe's text for a file of the user's.

    A shipped one without its name, so that the copy is called after its file and its records are
    not the original's; its schema is named by a place that an editor finds from anywhere.
    """
    if not is_shipped(loaded):
        return loaded.text
    text = _NAME_LINE.sub("", loaded.text, count=1)
    return _SCHEMA_LINE.sub(lambda _: schema_comment(), text, count=1)


def is_shipped(loaded: LoadedRecipe) -> bool:
    """Whether it comes with cook."""
    return loaded.path in shipped_recipes().values()


def schema_comment() -> str:
    """The first line by which editors check a recipe as it is typed."""
    return f"# yaml-language-server: $schema={schema_file()}"


def schema_file() -> Path:
    """The JSON Schema of recipes; ``make docs`` writes it."""
    return package_dir() / "recipe" / "recipe.schema.json"


def _without_empty(value: Any) -> Any:
    """``value`` without parts that say nothing: empty lists and maps."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in ({}, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def _quant(quant: Quant) -> dict[str, Any]:
    """The quant's keys, without those that say nothing."""
    asked = asdict(quant.tensors_from) if quant.tensors_from is not None else {}
    keys = {
        "name": quant.name,
        "type": quant.ftype,
        "mixture": quant.mixture,
        "part": quant.part,
        "imatrix": None if quant.use_imatrix else False,
        "tensors_from": {key: value for key, value in asked.items() if value is not None},
        "experts": list(quant.experts),
        "prune_layers": [list(layers) for layers in quant.prune_layers],
        "split": quant.split.as_typed if quant.split is not None else None,
        "rules": [{rule.selector: rule.type} for rule in quant.rules],
    }
    return {key: value for key, value in keys.items() if value not in (None, {}, [])}
