"""The texts and files that a recipe names: there, and not scored on what they were made from."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from cook.demo.unpack import is_unpacked
from cook.errors import Problem
from cook.recipe.load import LoadedRecipe
from cook.recipe.text_overlap import compare_texts
from cook.recipe.yaml_tree import Keys

if TYPE_CHECKING:
    from cook.recipe.schema import Recipe

_WIKI_HINT = (
    "it is in wikitext-2-raw-v1.zip of https://huggingface.co/datasets/ggml-org/ci; "
    "put it beside the recipe"
)
SHARE_IS_ERROR = 0.02
"""Above this share of common passages two texts count as the same content."""


def file_problems(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    """Missing files, and calibration text that is also evaluated or scored on."""
    named: dict[Keys, object] = {}
    if recipe.model is not None:
        named["model", "source"] = recipe.model.source
    if recipe.imatrix is not None:
        named["imatrix", "corpus"] = recipe.imatrix.corpus
        named["imatrix", "file"] = recipe.imatrix.file
    if recipe.evaluate is not None:
        named["evaluate", "corpus"] = recipe.evaluate.corpus
    if recipe.score is not None:
        named["score", "target", "source"] = recipe.score.target.source
        named["score", "prompts"] = recipe.score.prompts
    for index, draft in enumerate(recipe.drafts):
        named["drafts", index, "source"] = draft.source
    for keys, source in named.items():
        if isinstance(source, Path) and not (source.exists() or is_unpacked(source)):
            hint = _WIKI_HINT if source.name == "wiki.test.raw" else None
            yield loaded.locations.at(*keys).problem(
                f"no such file: {source}", hint=hint, kind="file"
            )
    yield from _unknown_categories(loaded, recipe)
    yield from _shared_content(loaded, recipe)


def _shared_content(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    calibration = recipe.imatrix.corpus if recipe.imatrix else None
    if not isinstance(calibration, Path) or not calibration.is_file():
        return
    others: list[tuple[Keys, str, Path]] = []
    if recipe.evaluate is not None and isinstance(recipe.evaluate.corpus, Path):
        others.append((("evaluate", "corpus"), "evaluation", recipe.evaluate.corpus))
    if recipe.score is not None:
        prompts = prompts_file(recipe.score.prompts)
        others.append((("score", "prompts"), "scoring", prompts))
    for keys, use, path in others:
        if not path.is_file():
            continue
        overlap = compare_texts(calibration, path)
        if overlap.identical:
            message = f"the calibration text is also used for {use}"
        elif overlap.shared:
            message = (
                f"the {use} text shares {overlap.shared} of {overlap.smaller} sampled passages "
                "with the calibration text"
            )
        else:
            continue
        severity = "error" if overlap.share >= SHARE_IS_ERROR else "warning"
        hint = "calibrate on other text: numbers on seen text flatter the quant"
        yield loaded.locations.at(*keys).problem(message, hint=hint, severity=severity)


def _unknown_categories(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[Problem]:
    from cook.errors import CookError
    from cook.prompts.load import load_prompts

    score = recipe.score
    if score is None or not (score.categories or score.weights):
        return
    try:
        known = load_prompts(score.prompts).categories
    except CookError:
        return  # told where the prompts are read
    named: list[tuple[Keys, str]] = [
        (("score", "categories", i), name) for i, name in enumerate(score.categories or ())
    ]
    named += [(("score", "weights", name), name) for name in score.weights or ()]
    for keys, name in named:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(known)}"
            yield loaded.locations.key_at(*keys).problem(
                f"the prompts have no category `{name}`", hint=hint
            )


def prompts_file(prompts: str | Path) -> Path:
    """The file behind a prompt set's name, or the path itself."""
    from cook.paths import demo_dir, package_dir

    if isinstance(prompts, Path):
        return prompts
    if prompts == "demo":
        return demo_dir() / "data" / "prompts.jsonl"
    return package_dir() / "prompts" / f"{prompts}.jsonl"
