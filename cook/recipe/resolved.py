"""A recipe with nothing left to work out: every quant with every rule, every path absolute."""

from __future__ import annotations

from typing import Any

from cook.recipe.load import LoadedRecipe
from cook.recipe.rules import Quant


def resolved(loaded: LoadedRecipe) -> str:
    """The recipe as YAML that needs no inheritance, sweep or base folder; itself a recipe.

    Settings that are at their default stay out.
    """
    import yaml

    document: dict[str, Any] = loaded.recipe.model_dump(mode="json", exclude_defaults=True)
    document.pop("sweep", None)
    if loaded.quants:
        document["quants"] = [_quant(quant) for quant in loaded.quants]
    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    return f"# {loaded.recipe.name}, resolved\n{text}"


def _quant(quant: Quant) -> dict[str, Any]:
    found: dict[str, Any] = {"name": quant.name, "type": quant.ftype, "mixture": quant.mixture}
    if not quant.use_imatrix:
        found["imatrix"] = False
    if quant.rules:
        found["rules"] = [{rule.selector: rule.type} for rule in quant.rules]
    return found
