"""List, show and check recipes; print the recipe schema; import and export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cook.cli.options import (
    EngineOption,
    JsonOption,
    QuietOption,
    RecipeArgument,
    StrictOption,
    UnsafeArgsOption,
    open_output,
)
from cook.cli.recipes_convert import export, import_

__all__ = ["check", "export", "import_", "ls", "schema", "show"]


def ls(json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the recipes that come with cook.

    Examples:
      cook recipes ls
    """
    from cook.recipe.load import load_recipe, shipped_recipes

    out = open_output(json, quiet)
    loaded = [load_recipe(path) for path in shipped_recipes().values()]
    out.emit(
        {
            "recipes": [
                {
                    "name": item.path.stem,
                    "path": item.path,
                    "engine": list(item.recipe.engine),
                    "quants": [quant.name for quant in item.quants],
                    "description": item.recipe.description,
                }
                for item in loaded
            ]
        }
    )
    rows = [
        (
            item.path.stem,
            ", ".join(item.recipe.engine) or None,
            len(item.quants),
            (item.recipe.description or "").strip().partition("\n")[0],
        )
        for item in loaded
    ]
    out.table(rows, ["recipe", "engine", "quants", "description"])


def show(
    recipe: RecipeArgument,
    resolve: Annotated[
        bool,
        typer.Option(
            "--resolved",
            help="Write out what is inherited or swept: every quant with every rule.",
            show_default=False,
        ),
    ] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print a recipe, as it is or resolved; with --json also what it expands to.

    A resolved recipe is a recipe itself, with absolute paths.

    Examples:
      cook recipes show ling-flash-iq1kt
      cook recipes show ling-flash-iq1kt --resolved
      cook recipes show ling-flash-iq1kt > mine.yaml
    """
    from cook.recipe.load import load_recipe
    from cook.recipe.resolved import resolved

    out = open_output(json, quiet)
    loaded = load_recipe(recipe)
    out.emit(
        {
            "path": loaded.path,
            "recipe": loaded.recipe,
            "quants": [
                {
                    "name": quant.name,
                    "type": quant.ftype,
                    "mixture": quant.mixture,
                    "imatrix": quant.use_imatrix,
                    "rules": [{rule.selector: rule.type} for rule in quant.rules],
                }
                for quant in loaded.quants
            ],
        }
    )
    out.data((resolved(loaded) if resolve else loaded.text).rstrip("\n"))


def check(
    recipe: RecipeArgument,
    engine: EngineOption = None,
    tensors: Annotated[
        Path | None,
        typer.Option(
            "--tensors",
            metavar="FILE",
            help="GGUF or tensor list (.tsv) to check the rules against.",
        ),
    ] = None,
    strict: StrictOption = False,
    allow_unsafe_args: UnsafeArgsOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find every fault of a recipe, with file, line and column.

    With an engine its types are checked too; with a model's tensors, what each rule hits, rows
    that do not divide, and the exact size of every quant.

    Examples:
      cook recipes check my-recipe.yaml
      cook recipes check ling-flash-iq1kt --engine ik --tensors Ling-flash-BF16.gguf
    """
    from dataclasses import replace

    from cook import units
    from cook.errors import RecipeError
    from cook.output import Column
    from cook.recipe.check import check_recipe
    from cook.recipe.load import load_recipe

    out = open_output(json, quiet)
    result = check_recipe(load_recipe(recipe, unsafe_args=allow_unsafe_args), engine, tensors)
    found = [replace(p, severity="error") if strict else p for p in result.problems]
    if any(p.severity == "error" for p in found):
        raise RecipeError(found)
    out.emit(result)
    for problem in found:
        out.say(str(problem))
    if result.quants:
        rows = [
            (
                quant.name,
                units.size(quant.size_bytes),
                None if quant.bpw is None else f"{quant.bpw:.4f}",
                ", ".join(f"{count} {name}" for name, count in quant.tensors_of_type.items()),
            )
            for quant in result.quants
        ]
        out.table(rows, ["quant", Column("size", "right"), Column("bpw", "right"), "tensors"])
    warnings = units.plural(len(found), "warning")
    out.say(f"{result.path}: no errors on {result.flavour}, {warnings}")


def schema(json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Print the JSON Schema of recipes, for editors.

    Examples:
      cook recipes schema > recipe.schema.json
    """
    from cook.output import to_json
    from cook.recipe.reference import json_schema

    out = open_output(json, quiet)
    document = json_schema()
    out.emit(document)
    out.data(to_json(document))
