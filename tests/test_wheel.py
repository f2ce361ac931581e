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
    root = data_dir(folder)
    files = {f"cook/_data/{folder}/{p.relative_to(root)}" for p in root.rglob("*") if p.is_file()}
    assert files
    assert files <= names


def test_sources_and_notices_are_inside(names: set[str]) -> None:
    prompts = {str(p.relative_to(ROOT)) for p in (ROOT / "cook" / "prompts").rglob("*.jsonl")}
    assert prompts
    sources = {"py.typed", "engine_setup.cmake", "engines/worker/worker.c"}
    sources |= {"recipe/recipe.schema.json", *(f"demo/{name}" for name in DEMO)}
    page = ("report.html", "report.css", "report.md.jinja", "card.md.jinja", "report.mplstyle")
    sources |= {f"report/page/{name}" for name in page}
    assert prompts | {f"cook/{name}" for name in sources} <= names
    licences = {name.rpartition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert {"LICENSE", "cook/demo/NOTICE", "imatrix/NOTICE"} <= licences


def test_nothing_else_is_inside(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cook"}
    assert not [n for n in names if "__pycache__" in n or n.endswith((".log", ".tmp"))]


def test_the_installed_wheel_runs_and_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # -S would lose the dependencies; the path put first wins over the checkout.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import cook.paths\n"
        "from cook.recipe.load import shipped_recipes\n"
        "assert str(cook.paths.package_dir()).startswith(sys.argv[1])\n"
        "print(len(shipped_recipes()))\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(list((ROOT / "recipes").glob("*.yaml")))
