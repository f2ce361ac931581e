"""--demo replaces source, target, corpora and prompts, and nothing else."""

from __future__ import annotations

import pytest

from cook.demo.unpack import UNPACKED
from cook.errors import InputError
from cook.job.locate import locate
from cook.paths import demo_dir
from cook.recipe.demo import apply_demo, demo_lacks, demo_quants
from cook.recipe.load import load_recipe, shipped_recipes
from cook.recipe.rules import Quant
from cook.recipe.schema import Recipe
from cook.recipe.sources import OWN_HEAD


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_only_the_inputs_change(name: str) -> None:
    before = load_recipe(name).recipe
    after = apply_demo(before)
    assert after.model.source == demo_dir() / "draft-f16.gguf"
    assert after.imatrix.corpus == demo_dir() / "data" / "calibration.txt"
    if before.evaluate is not None:
        assert after.evaluate.corpus == demo_dir() / "data" / "evaluation.txt"
    assert after.score.target.source == demo_dir() / UNPACKED
    assert after.score.prompts == "demo"
    assert after.drafts == tuple(d for d in before.drafts if d.source == OWN_HEAD)
    assert without_inputs(after) == without_inputs(before)


def test_the_demo_has_no_head_to_make_quants_of() -> None:
    model, head = Quant("M", "Q8_0"), Quant("H", "Q8_0", part="head")
    assert demo_quants((model, head)) == (model,)
    assert demo_lacks((model, head)) == ("the demo's draft has no head: not made are H",)
    with pytest.raises(InputError, match="the demo's draft has no head"):
        demo_quants((head,))


def without_inputs(recipe: Recipe) -> dict[str, object]:
    data = recipe.model_dump()
    for part, keys in (
        ("model", ["source"]),
        ("imatrix", ["corpus"]),
        ("evaluate", ["corpus"]),
        ("score", ["prompts", "weights", "categories"]),
    ):
        for key in keys if data[part] is not None else ():
            del data[part][key]
    del data["score"]["target"]["source"], data["drafts"]
    return data


def test_absent_parts_stay_absent() -> None:
    recipe = load_recipe("demo").recipe.model_copy(update={"imatrix": None, "score": None})
    after = apply_demo(recipe)
    assert after.imatrix is None
    assert after.score is None


def test_the_demos_files_are_there() -> None:
    recipe = apply_demo(load_recipe("ling-flash-iq1kt").recipe)
    for path in (recipe.model.source, recipe.evaluate.corpus, recipe.score.target.source):
        assert locate(path).path.is_file()
