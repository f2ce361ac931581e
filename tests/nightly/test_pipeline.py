"""Pipelines: every fault at once with its place; cells by name; the nights' score settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.errors import InputError, PipelineError
from cook.nightly.pipeline import load_pipeline, parse_pipeline, shipped_pipelines

GOOD = """\
version: 1
name: mine
recipes:
  - demo
  - {recipe: ling-flash-iq1kt, engines: [ik, other], demo: true}
engines: bundled
score: {limit: 24, repeats: 3, live_minutes: 5}
gates: {acceptance_points: 2}
"""


def problems(text: str, path: Path = Path("nightly.yaml")) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text, path)
    return [str(p).partition("\n")[0] for p in caught.value.problems]


def test_cells_are_recipes_times_engines_scored_as_the_nights_say() -> None:
    loaded = parse_pipeline(GOOD, Path("nightly.yaml"))
    names = ["demo-bundled", "ling-flash-iq1kt-ik-demo", "ling-flash-iq1kt-other-demo"]
    assert [c.name for c in loaded.cells] == names
    assert [c.demo for c in loaded.cells] == [False, True, True]
    assert loaded.cell("demo-bundled").engines == ("bundled",)
    score = loaded.cells[0].loaded.recipe.score
    assert (score.limit, score.repeats, score.live_budget.minutes) == (24, 3, 5)
    assert score.max_tokens == 96  # as the recipe says


def test_a_reference_build_is_of_an_engine_that_a_cell_runs_on(tmp_path: Path) -> None:
    kept, path = tmp_path.resolve() / "kept", tmp_path / "nightly.yaml"
    kept.mkdir()
    loaded = parse_pipeline(GOOD + "reference: {ik: kept}\n", path)
    assert [loaded.reference(cell) for cell in loaded.cells] == [{}, {"ik": kept}, {}]
    assert problems(GOOD + "reference: {iik: kept, ik: gone}\n", path) == [
        f"{path}:9:18: error: no cell runs on the engine iik",
        f"{path}:9:28: error: no folder {kept.with_name('gone')}",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "version: 2\nname: x\nrecipes: []\nengins: bundled\ngates: {confidence: 1}\n",
            [
                "nightly.yaml:1:10: error: `version` must be 1",
                "nightly.yaml:3:1: error: `recipes` is empty",
                "nightly.yaml:4:1: error: unknown key `engins`",
                "nightly.yaml:5:21: error: `confidence` must be less than 1",
            ],
        ),
        (
            "version: 1\nname: x\nrecipes: [demoo, demo, demo]\n",
            [
                "nightly.yaml:3:11: error: no recipe demoo",
                "nightly.yaml:3:24: error: the cell demo-bundled is listed twice",
            ],
        ),
        (
            "version: 1\nname: x\nrecipes: [demo]\nscore: {max_tokens: 4096}\n",
            [
                "nightly.yaml:4:1: error: demo: `max_tokens` 4096 leaves no room for a prompt in a "
                "context of 2048"
            ],
        ),
        ("- a\n", ["nightly.yaml:1:1: error: a pipeline is a mapping"]),
        ("", ["nightly.yaml:1:1: error: the pipeline is empty"]),
    ],
)
def test_every_fault_has_its_place(text: str, found: list[str]) -> None:
    assert problems(text) == found


@pytest.mark.parametrize("name", shipped_pipelines())
def test_the_shipped_pipelines_are_sound(name: str) -> None:
    loaded = load_pipeline(name)
    assert loaded.pipeline.name == name
    assert loaded.cells
    assert loaded.pipeline.gates.confidence >= 0.99


def test_a_name_that_is_nearly_right() -> None:
    with pytest.raises(InputError, match="no pipeline nightli") as caught:
        load_pipeline("nightli")
    assert caught.value.hint == "did you mean `nightly`?"
    with pytest.raises(InputError, match="no cell demo-bundeld") as caught:
        load_pipeline("demo").cell("demo-bundeld")
    assert caught.value.hint == "did you mean `demo-bundled`?"


def test_recipes_and_history_next_to_the_pipeline_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert load_pipeline("demo").history == tmp_path / "home" / "history" / "demo.jsonl"
    demo = Path("recipes") / "demo.yaml"
    (tmp_path / "demo.yaml").write_text(demo.read_text().replace("name: demo", "name: own"))
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nname: p\nrecipes: [demo.yaml]\nhistory: nights.jsonl\n")
    loaded = load_pipeline(file)
    assert loaded.history == tmp_path / "nights.jsonl"
    assert [c.name for c in loaded.cells] == ["own-bundled"]
