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


def parsed(text: str) -> object:
    return parse_pipeline(text, Path("nightly.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        parsed(text)
    return [str(p).partition("\n")[0] for p in caught.value.problems]


def test_cells_are_recipes_times_engines() -> None:
    loaded = parse_pipeline(GOOD, Path("nightly.yaml"))
    assert [c.name for c in loaded.cells] == [
        "demo-bundled",
        "ling-flash-iq1kt-ik-demo",
        "ling-flash-iq1kt-other-demo",
    ]
    assert [c.demo for c in loaded.cells] == [False, True, True]
    assert loaded.cell("demo-bundled").engines == ("bundled",)


def test_the_nights_score_replaces_the_recipes() -> None:
    cell = parse_pipeline(GOOD, Path("nightly.yaml")).cells[0]
    score = cell.loaded.recipe.score
    assert (score.limit, score.repeats, score.live_budget.minutes) == (24, 3, 5)
    assert score.max_tokens == 96  # as the recipe says


def test_a_reference_build_is_of_an_engine_that_a_cell_runs_on(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    text = GOOD + "reference: {ik: kept}\n"
    loaded = parse_pipeline(text, tmp_path / "nightly.yaml")
    assert [loaded.reference(cell) for cell in loaded.cells] == [
        {},
        {"ik": tmp_path.resolve() / "kept"},
        {},
    ]
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(GOOD + "reference: {iik: kept, ik: gone}\n", tmp_path / "nightly.yaml")
    assert [p.message for p in caught.value.problems] == [
        "no cell runs on the engine iik",
        f"no folder {tmp_path.resolve() / 'gone'}",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("version: 1\nname: x\nrecipes: []\n", ["nightly.yaml:3:1: error: `recipes` is empty"]),
        (
            "version: 2\nname: x\nrecipes: [demo]\n",
            ["nightly.yaml:1:10: error: `version` must be 1"],
        ),
        (
            "version: 1\nname: x\nrecipes: [demo]\nengins: bundled\n",
            ["nightly.yaml:4:1: error: unknown key `engins`"],
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
        (
            "version: 1\nname: x\nname: y\nrecipes: [demo]\n",
            ["nightly.yaml:3:1: error: duplicate key `name` (first on line 2)"],
        ),
        ("- a\n", ["nightly.yaml:1:1: error: a pipeline is a mapping"]),
        ("", ["nightly.yaml:1:1: error: the pipeline is empty"]),
        (
            "version: 1\nname: x\nrecipes: [demo]\ngates: {confidence: 1, size_percent: -1}\n",
            [
                "nightly.yaml:4:21: error: `confidence` must be less than 1",
                "nightly.yaml:4:38: error: `size_percent` must be at least 0",
            ],
        ),
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


def test_the_history_lies_in_the_home_or_beside_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    assert load_pipeline("demo").history == tmp_path / "home" / "history" / "demo.jsonl"
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nname: p\nrecipes: [demo]\nhistory: nights.jsonl\n")
    assert load_pipeline(file).history == tmp_path / "nights.jsonl"


def test_recipes_beside_the_pipeline_come_first(tmp_path: Path) -> None:
    text = (Path("recipes") / "demo.yaml").resolve()
    (tmp_path / "demo.yaml").write_text(text.read_text().replace("name: demo", "name: own"))
    (tmp_path / "p.yaml").write_text("version: 1\nname: p\nrecipes: [demo.yaml]\n")
    assert [c.name for c in load_pipeline(tmp_path / "p.yaml").cells] == ["own-bundled"]
