"""Raw flags in recipes: refused at their place, before anything is looked at for them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cook.errors import PrerequisiteError, Problem, RecipeError
from cook.formats.quant_types import Flavour
from cook.job.adhoc import score_recipe
from cook.recipe.lint import lint, raise_problems
from cook.recipe.load import LoadedRecipe, load_recipe, parse_recipe
from cook.recipe.raw_flags import PLACES
from cook.recipe.schema import ModelArgsSpec, Recipe

RECIPE = """\
version: 1
name: r
model: {source: demo://draft-f16.gguf}
quants: [{name: A, type: Q4_0}]
imatrix: {corpus: demo://data/calibration.txt}
evaluate: {corpus: demo://data/evaluation.txt}
score:
  target: {source: demo://target-q8_0.gguf}
  draft: {}
  baseline: {}
"""
NAMES = ["/".join(place) for place in PLACES]
LINES = {"imatrix": 5, "evaluate": 6, "target": 8, "draft": 9, "baseline": 10}


def with_flags(place: str, *words: str) -> str:
    """The recipe with ``words`` as the raw flags at ``place``."""
    lines = RECIPE.splitlines()
    number = LINES[place.split("/")[-2]] - 1
    listed = ", ".join(f"'{word}'" for word in words)
    comma = "" if lines[number].endswith("{}") else ", "
    lines[number] = f"{lines[number][:-1]}{comma}args: {{extra: [{listed}]}}}}"
    return "\n".join(lines)


def loaded(place: str, *words: str, unsafe: bool = False) -> LoadedRecipe:
    return parse_recipe(with_flags(place, *words), Path("r.yaml"), unsafe_args=unsafe)


def places_of(annotation: object, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where in a part of a recipe model arguments stand."""
    if annotation is ModelArgsSpec:
        yield before
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from places_of(field.annotation, (*before, name))
    for part in typing.get_args(annotation):
        yield from places_of(part, before)


def test_every_place_of_model_arguments_is_read() -> None:
    assert set(places_of(Recipe)) == set(PLACES)


@pytest.mark.parametrize("place", NAMES)
def test_a_refused_flag_at_its_line_and_column_unless_the_user_lets_it_through(place: str) -> None:
    words = ("--numa", "isolate", "--model_url", "http://x/y.gguf")
    with pytest.raises(RecipeError) as caught:
        loaded(place, *words)
    (problem,) = caught.value.problems
    row = LINES[place.split("/")[-2]]
    line = with_flags(place, *words).splitlines()[row - 1]
    assert (problem.line, problem.column) == (row, line.index("'--model_url'") + 1)
    assert "it downloads" in problem.message
    assert caught.value.exit_code == 2
    found = lint(loaded(place, *words, unsafe=True), flavour=Flavour.LLAMA_CPP, check_files=False)
    (through,) = [p for p in found if "--allow-unsafe-args" in p.message]
    assert "`--model_url`" in through.message
    assert all(p.severity == "warning" for p in found)


def test_experts_as_a_flag_would_change_the_target_too() -> None:
    """Refused with the key that says it; let through, it is reported all the same."""
    words = ("--override-kv", "bailingmoe2.expert_used_count=int:1")
    for place in ("score/target/args", "score/draft/args"):
        with pytest.raises(RecipeError, match="reaches a target of the draft's architecture"):
            loaded(place, *words)
        found = lint(loaded(place, *words, unsafe=True), flavour=Flavour.LLAMA_CPP)
        (problem,) = [p for p in found if "`experts:`" in p.message]
        assert problem.severity == "warning"


@pytest.mark.parametrize("flag", ["--port", "-m", "-ot", "--allow-unsafe-args"])
def test_what_cook_says_itself_is_never_let_through(flag: str) -> None:
    with pytest.raises(RecipeError):
        loaded("score/target/args", flag, "1", unsafe=True)


def test_no_file_can_say_that_flags_are_safe() -> None:
    with pytest.raises(RecipeError, match="unknown key"):
        parse_recipe(f"{RECIPE}unsafe_args: true\n", Path("r.yaml"))


def test_a_harmless_flag_of_the_other_engine() -> None:
    recipe = loaded("score/target/args", "--no-mmap")
    found = lint(recipe, flavour=Flavour.LLAMA_CPP, check_files=False)
    assert ["--no-mmap" in p.message and p.severity for p in found] == ["error"]
    assert not lint(recipe, flavour=Flavour.IK_LLAMA_CPP, check_files=False)


def test_a_harmless_flag_that_the_very_tool_lacks(standin_engine: Callable[..., Any]) -> None:
    engine = standin_engine()

    def problems(place: str, *words: str) -> tuple[Problem, ...]:
        facts, name = engine.facts, engine.name
        recipe = loaded(place, *words)
        return lint(
            recipe, flavour=engine.flavour, facts=facts, engine_name=name, check_files=False
        )

    for place, *words in (
        ("imatrix/args", "--no-warmup"),
        ("evaluate/args", "--threads-http", "2"),
    ):
        found = problems(place, *words)
        assert [p.kind for p in found] == ["prerequisite"]
        assert f"has no {words[0]}" in found[0].message
        with pytest.raises(PrerequisiteError):
            raise_problems(found)
        assert not problems("score/target/args", *words)


def test_a_recipe_scored_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(with_flags("score/draft/args", "--lora", "x"))
    with pytest.raises(RecipeError, match="--lora"):
        score_recipe(None, [], file, {})
    assert score_recipe(None, [], file, {}, unsafe_args=True).unsafe_args
    assert load_recipe(file, unsafe_args=True).unsafe_args


def test_another_machine_needs_the_user_s_own_word() -> None:
    """An RPC server is sent the weights and every prompt."""

    def read(server: str, **unsafe: bool) -> LoadedRecipe:
        text = RECIPE.replace("draft: {}", f"draft: {{args: {{rpc: '{server}'}}}}")
        return parse_recipe(text, Path("r.yaml"), **unsafe)

    for server in ("10.0.0.7:50052", "evil.example:1", "[2001:db8::1]:9"):
        with pytest.raises(RecipeError, match="another machine") as caught:
            read(server)
        assert caught.value.problems[0].line == LINES["draft"]
        assert read(server, unsafe_args=True)
    for server in ("127.0.0.1:50052", "localhost:1", "[::1]:9"):
        assert read(server)
