"""``--demo``: any recipe on the demo's models and texts, and nothing else changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cook.demo.unpack import UNPACKED
from cook.errors import InputError
from cook.formats.gguf import header
from cook.formats.reduction import Reduction
from cook.paths import demo_dir
from cook.recipe.rules import Quant, some
from cook.recipe.schema import Recipe
from cook.recipe.sources import OWN_HEAD

SOURCE = "draft-f16.gguf"


def apply_demo(recipe: Recipe) -> Recipe:
    """``recipe`` with the demo's source, target, corpora and prompts.

    Parts that the recipe does not have stay absent, and every setting stays as it is. What
    belongs to the replaced goes with it: ready drafts but the target's own head, a ready imatrix
    (it is computed from the demo's calibration text instead), and names of prompt categories.
    """
    demo = demo_dir()
    own = tuple(draft for draft in recipe.drafts if draft.source == OWN_HEAD)
    changes: dict[str, object] = {"drafts": own}
    if recipe.model is not None:
        changes["model"] = recipe.model.model_copy(update={"source": demo / SOURCE})
    if recipe.imatrix is not None:
        corpus = "trace" if recipe.imatrix.corpus == "trace" else demo / "data" / "calibration.txt"
        changes["imatrix"] = recipe.imatrix.model_copy(update={"corpus": corpus, "file": None})
    if recipe.evaluate is not None:
        corpus = demo / "data" / "evaluation.txt"
        changes["evaluate"] = recipe.evaluate.model_copy(update={"corpus": corpus})
    if recipe.score is not None:
        target = recipe.score.target.model_copy(update={"source": demo / UNPACKED})
        prompts = {"prompts": "demo", "categories": None, "weights": None}
        changes["score"] = recipe.score.model_copy(update={"target": target, **prompts})
    return recipe.model_copy(update=changes)


def demo_quants(quants: Iterable[Quant]) -> tuple[Quant, ...]:
    """``quants`` made of the demo's source: its tensors are not published, what it has too few
    experts or layers for is not tried, and it has no head. InputError where that leaves none."""
    quants, file = tuple(quants), header(demo_dir() / SOURCE)
    if quants and all(quant.part is not None for quant in quants):
        raise InputError(
            "the demo's draft has no head, and this recipe makes quants of nothing else",
            hint="`cook plan` without --demo shows what it would do on its own models",
        )

    def possible(reduction: Reduction) -> bool:
        try:
            reduction.applied_to(file)
        except InputError:
            return False
        return True

    return tuple(
        replace(
            quant,
            tensors_from=None,
            experts=tuple(n for n in quant.experts if possible(Reduction(n))),
            prune_layers=tuple(n for n in quant.prune_layers if possible(Reduction(None, n))),
        )
        for quant in quants
        if quant.part is None
    )


def demo_lacks(quants: Sequence[Quant]) -> tuple[str, ...]:
    """A warning where :func:`demo_quants` leaves candidates out."""
    models = tuple(quant for quant in quants if quant.part is None)
    left = [
        reduction.named(quant.name)
        for quant, fewer in zip(models, demo_quants(models), strict=True)
        for reduction in quant.candidates
        if reduction not in fewer.candidates
    ]
    message = "the demo's draft has fewer experts or layers: not tried are"
    heads = [quant.name for quant in quants if quant.part is not None]
    return (
        *((f"{message} {some(left)}",) if left else ()),
        *((f"the demo's draft has no head: not made are {some(heads)}",) if heads else ()),
    )
