"""Where sources point: the hub, the demo, the recipe's folder, the shipped corpora."""

from __future__ import annotations

from pathlib import Path

import pytest

from cook.paths import data_dir, demo_dir
from cook.recipe.sources import HubRef, parse_source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org/name", HubRef("org/name")),
        ("hf://org/name@main", HubRef("org/name", "main")),
        ("hf://org/na.me-2.0@v1.0/a/b.gguf", HubRef("org/na.me-2.0", "v1.0", "a/b.gguf")),
        ("hf://org/name@refs/pr/3/x.gguf", HubRef("org/name", "refs/pr/3", "x.gguf")),
        ("hf://org/name/folder", HubRef("org/name", None, "folder")),
        ("hf://datasets/org/name/a.txt", HubRef("org/name", None, "a.txt", dataset=True)),
    ],
)
def test_hub_references_round_trip(text: str, expected: HubRef) -> None:
    assert HubRef.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "rest",
    [
        *("", "name", "/name", "org/", "org/na me", "org/name@", "org/name/", "org/name//x"),
        *("org/name/../x", "org/name/./x", "org/name/a\\b", "org/n..e", "org/a--b"),
        *("org/name.git", "-org/name", "org/name?x=1", "org/näme"),
    ],
)
def test_bad_hub_references(rest: str) -> None:
    with pytest.raises(ValueError, match=r"hub"):
        HubRef.parse(f"hf://{rest}")


def test_paths_are_from_the_recipe(tmp_path: Path) -> None:
    assert parse_source("a/b.gguf", tmp_path) == tmp_path / "a" / "b.gguf"
    assert parse_source("/x/y", tmp_path) == Path("/x/y")
    assert parse_source("~/x", tmp_path) == Path.home() / "x"


def test_shipped_corpora_are_found_unless_the_recipe_has_its_own(tmp_path: Path) -> None:
    shipped = data_dir("imatrix") / "calibration-v1.txt"
    assert parse_source("imatrix/calibration-v1.txt", tmp_path) == shipped
    own = tmp_path / "imatrix" / "calibration-v1.txt"
    own.parent.mkdir()
    own.write_text("mine")
    assert parse_source("imatrix/calibration-v1.txt", tmp_path) == own
    assert parse_source("imatrix/absent.txt", tmp_path) == tmp_path / "imatrix" / "absent.txt"


def test_the_demo(tmp_path: Path) -> None:
    found = parse_source("demo://data/calibration.txt", tmp_path)
    assert found == demo_dir() / "data" / "calibration.txt"
    for bad in ("demo://", "demo://../x", "demo:///etc/passwd"):
        with pytest.raises(ValueError, match="no such place"):
            parse_source(bad, tmp_path)
