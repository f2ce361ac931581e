"""Broken input: one clear error with its place, the right status, no traceback, no leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cook.cli.main import main
from tests.formats.test_gguf import BROKEN as GGUF
from tests.formats.test_imatrix_file import BROKEN_DAT

BROKEN = Path(__file__).parent.parent / "data" / "broken_recipes"
RECIPES = sorted(p.name for p in BROKEN.glob("*.yaml"))
EXPECTED = json.loads((BROKEN / "expected.json").read_text())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COOK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def leftovers(home: Path) -> list[str]:
    """Files that a failed command left, but for what it remembers of engines."""
    if not home.exists():
        return []
    kept = ("cache", "locks", "empty-home")
    return [
        str(p) for p in home.rglob("*") if p.is_file() and p.relative_to(home).parts[0] not in kept
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_broken_recipes(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(BROKEN / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    first = EXPECTED[name][0].splitlines()[0]
    assert f"{name}:{first}" in captured.err
    assert leftovers(home) == []


# One of a kind: all that may be wrong with these files is told by their readers' own tests.
@pytest.mark.parametrize("name", ["empty", "tensors lie", "data cut"])
def test_broken_ggufs(
    name: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(GGUF[name][0])
    _refused(["inspect", str(path)], path, home, capsys)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"version: 1\nname: broken\nmodel: {{source: {json.dumps(str(path))}}}\n"
        "quants: [{name: Q8_0, type: Q8_0}]\n"
    )
    _refused(["build", str(recipe)], path, home, capsys)


@pytest.mark.parametrize("name", ["empty", "values lie", "nan"])
def test_broken_imatrix_files(
    name: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.dat"
    path.write_bytes(BROKEN_DAT[name][0])
    _refused(["inspect", str(path)], path, home, capsys)


def _refused(
    arguments: list[str], path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert path.name in captured.err
    assert captured.err.count("error:") <= 2
    assert leftovers(home) == []


def test_an_engine_without_the_type_exits_5_and_names_the_other(
    standin_engine: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = standin_engine(flavour="llama.cpp")
    spec = f"standin={engine.facts.bin_dir}"  # type: ignore[attr-defined]
    assert main(["build", "ling-flash-iq1kt", "--demo", "--engine", spec]) == 5
    captured = capsys.readouterr()
    assert "iq1_kt" in captured.err
    assert "ik_llama.cpp" in captured.err
    assert captured.out == ""
