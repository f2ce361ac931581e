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
EXPECTED = json.loads((BROKEN / "expected.json").read_text())
FILES = {
    **{f"{name}.gguf": GGUF[name][0] for name in ("empty", "tensors lie", "data cut")},
    **{f"{name}.dat": BROKEN_DAT[name][0] for name in ("empty", "values lie", "nan")},
}
"""One of a kind: all that may be wrong with these files is in their readers' own tests."""


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command says on stderr that ends with 2 and leaves no file."""
    home = tmp_path / "home"
    monkeypatch.setenv("COOK_HOME", str(home))

    def ask(*words: object) -> str:
        assert main([*map(str, words)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        files = [p.relative_to(home) for p in home.rglob("*") if p.is_file()]
        of_engines = ("cache", "locks", "empty-home")
        assert [p for p in files if p.parts[0] not in of_engines] == []
        return captured.err

    return ask


@pytest.mark.parametrize("name", sorted(p.name for p in BROKEN.glob("*.yaml")))
def test_broken_recipes(name: str, refused: Callable[..., str]) -> None:
    said = refused("build", BROKEN / name)
    assert f"{name}:{EXPECTED[name][0].splitlines()[0]}" in said
    assert refused("plan", BROKEN / name) == said
    assert refused("recipes", "check", BROKEN / name) == said


@pytest.mark.parametrize("name", FILES)
def test_broken_files(name: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    path, recipe = tmp_path / name, tmp_path / "recipe.yaml"
    path.write_bytes(FILES[name])
    quants = "quants: [{name: Q8_0, type: Q8_0}]\n"
    recipe.write_text(f"version: 1\nmodel: {{source: {json.dumps(str(path))}}}\n{quants}")
    for words in (("inspect", path), ("build", recipe))[: 1 + (path.suffix == ".gguf")]:
        said = refused(*words)
        assert name in said
        assert said.count("error:") <= 2


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
