"""Which tensors cannot be quantized without importance data, by engine.

The engines fail late (after hours, with a partial file) or abort
(docs/internals/engines.md#types-that-need-an-imatrix). On mainline also whole base types fail,
since their mixtures use such types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cook.errors import Problem
from cook.recipe.rules import Quant, Resolution, some
from cook.recipe.yaml_tree import Location

if TYPE_CHECKING:
    from cook.formats.imatrix import Imatrix

NO_IMATRIX_HINT = "add `imatrix: {corpus: ...}` to the recipe, or choose another type"

# Base types whose built-in mixture gives some tensor a type that demands an imatrix
# (mainline llama_tensor_get_type_impl, ik llama_tensor_get_type), beside those whose default does.
_MIXTURE_NEEDS = {
    "llama.cpp": frozenset({"IQ3_XS", "IQ3_XXS"}),
    "ik_llama.cpp": frozenset({"IQ3_XXS", "IQ3_XXS_R4"}),
}
_NEVER_COVERED = ("token_embd.weight", "per_layer_token_embd.weight")


def type_needs_imatrix(type_name: str, ftype: str, flavour: str) -> bool:
    """Whether an ordinary tensor of this type needs importance data on ``flavour``."""
    from cook.formats.quant_types import needs_imatrix

    return needs_imatrix("blk.0.ffn_up.weight", type_name, ftype, flavour)


def ftype_needs_imatrix(quant: Quant, flavour: str) -> bool:
    """Whether the base type itself, or its mixture where that is used, needs an imatrix."""
    from cook.formats.quant_types import ftype_by_name

    base = ftype_by_name(quant.ftype)
    if flavour in base.imatrix:
        return True
    if quant.mixture != "engine":
        return False
    return quant.ftype in _MIXTURE_NEEDS.get(flavour, frozenset()) or type_needs_imatrix(
        base.default, quant.ftype, flavour
    )


def imatrix_problems(
    quant: Quant,
    resolution: Resolution,
    flavour: str,
    has_imatrix: bool,
    imatrix: Imatrix | None,
    *,
    with_output: bool = True,
) -> Iterator[Problem]:
    """Tensors that would fail for want of importance data; ``imatrix`` if it is read.

    ``with_output``: one that is collected covers the output tensor too.
    """
    from cook.formats.imatrix import entry_for
    from cook.formats.quant_types import needs_imatrix

    where = quant.at or Location("<recipe>", 1, 1)
    # Where rules decide every tensor the base type matters only to ik's gate before the start.
    gated = flavour in _base_gate(quant) or not resolution.complete
    if not has_imatrix and gated and ftype_needs_imatrix(quant, flavour):
        message = f"quant {quant.name}: {quant.ftype} needs an imatrix on {flavour}"
        yield where.problem(message, hint=NO_IMATRIX_HINT)
    lacking: dict[tuple[int | None, str, str], list[str]] = {}
    for name, rule in resolution.rule_of.items():
        wanted = resolution.types[name]
        if wanted is None or not needs_imatrix(name, wanted, quant.ftype, flavour):
            continue
        if name in _NEVER_COVERED:
            # No imatrix has embeddings: the engine aborts whatever is given.
            lacking.setdefault((rule, wanted, "never"), []).append(name)
        elif not has_imatrix:
            lacking.setdefault((rule, wanted, "none"), []).append(name)
        elif imatrix is None and name == "output.weight" and not with_output:
            lacking.setdefault((rule, wanted, "output"), []).append(name)
        elif imatrix is not None and entry_for(imatrix, name, flavour) is None:
            lacking.setdefault((rule, wanted, "entry"), []).append(name)
    for (index, type_name, why), names in lacking.items():
        at = (quant.rules[index].at if index is not None else None) or where
        subject = f"quant {quant.name}: {type_name}"
        if why == "never":
            message = f"{subject} needs importance data, and embeddings never have any"
            hint = "the engine would abort; use q4_K or larger for embeddings"
            yield at.problem(f"{message} ({some(names)})", hint=hint)
        elif why == "none":
            message = f"{subject} needs an imatrix on {flavour} ({some(names)})"
            yield at.problem(message, hint=NO_IMATRIX_HINT)
        elif why == "output":
            message = f"{subject} needs importance data, and the output tensor's is not collected"
            hint = "write `imatrix: {process_output: true}`, or choose a larger type for the output"
            yield at.problem(message, hint=hint)
        else:
            message = f"{subject} needs importance data that the imatrix lacks ({some(names)})"
            yield at.problem(message, hint="collect the imatrix from this very model")


def _base_gate(quant: Quant) -> frozenset[str]:
    from cook.formats.quant_types import ftype_by_name

    return ftype_by_name(quant.ftype).imatrix
