"""The wheel that we would publish holds what an installed cook reads."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cook.paths import data_dir

ROOT = Path(__file__).resolve().parents[1]
DEMO = ("target-q8_0.gguf", "draft-f16.gguf", "data/calibration.txt", "data/evaluation.txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    # hatchling is a locked dependency: no isolation means no network.
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*argv, "--wheel-dir", str(directory), str(ROOT)], check=True)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", ["recipes", "imatrix", "pipelines"])
def test_data_folders_are_inside(names: set[str], folder: str) -> None:
    files = [p for p in data_dir(folder).rglob("*") if p.is_file()]
    for file in files:
        inside = file.relative_to(data_dir(folder))
        assert f"cook/_data/{folder}/{inside}" in names
    if folder != "pipelines":  # sweeps come with a later issue
        assert files, f"{folder}/ is empty"


@pytest.mark.parametrize("name", DEMO)
def test_demo_files_are_inside(names: set[str], name: str) -> None:
    assert f"cook/demo/{name}" in names


def test_sources_and_notices_are_inside(names: set[str]) -> None:
    assert {
        "cook/py.typed",
        "cook/engine_setup.cmake",
        "cook/engines/worker/worker.c",
        "cook/recipe/recipe.schema.json",
    } <= names
    page = ("report.html", "report.css", "report.md.jinja", "card.md.jinja", "report.mplstyle")
    assert {f"cook/report/page/{name}" for name in page} <= names
    licences = {name.rpartition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert {"LICENSE", "cook/demo/NOTICE", "imatrix/NOTICE"} <= licences


def test_prompts_are_inside(names: set[str]) -> None:
    files = [p for p in (ROOT / "cook" / "prompts").rglob("*.jsonl") if p.is_file()]
    assert files
    for file in files:
        assert str(file.relative_to(ROOT)) in names


def test_nothing_else_is_inside(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cook"}
    assert not [n for n in names if "__pycache__" in n or n.endswith((".log", ".tmp"))]


def test_the_installed_wheel_runs_and_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import cook.paths, sys\n"
        "from cook.recipe.load import shipped_recipes\n"
        "assert str(cook.paths.package_dir()).startswith(sys.argv[1])\n"
        "print(len(shipped_recipes()))\n"
    )
    # -S would lose the dependencies; the path put first wins over the checkout.
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1])\n{code}", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == len(list((ROOT / "recipes").glob("*.yaml")))
