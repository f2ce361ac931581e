"""The documents: generated ones fresh, links and named commands real."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cook import __version__, engine_setup
from cook.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_generated_files_are_fresh() -> None:
    argv = [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    fenced = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"^cook ([a-z]+)", "\n".join(fenced), flags=re.MULTILINE):
        assert name in COMMANDS, f"{page.name}: cook {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_recipes_are_shipped(page: Path) -> None:
    for name in re.findall(r"\brecipes/([\w.-]+\.yaml)", page.read_text()):
        assert (ROOT / "recipes" / name).is_file(), f"{page.name}: recipes/{name}"


def test_one_version_everywhere() -> None:
    assert PROJECT["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_one_engine_version_everywhere() -> None:
    pinned = f"{engine_setup.PACKAGE}=={engine_setup.VERSION}"
    assert pinned in PROJECT["dependencies"]
    assert pinned in (ROOT / "requirements-engine.lock").read_text()


def test_locks_name_no_place() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text()
        assert "://" not in text
        assert not re.search(r"^\s*-", text.replace("    --hash", ""), flags=re.MULTILINE)


def test_every_dependency_is_locked() -> None:
    locked = {
        line.partition("==")[0].lower()
        for lock in ROOT.glob("requirements*.lock")
        for line in lock.read_text().splitlines()
        if "==" in line
    }
    for requirement in PROJECT["dependencies"]:
        assert re.split(r"[><=]", requirement)[0].lower() in locked


def test_the_line_after_make_demo_works_in_that_shell() -> None:
    """`cook` is in the environment that make made, which no shell knows by itself."""
    block = re.search(r"^```sh\n(make demo.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert block is not None
    lines = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert lines == ["make demo", ". .venv/bin/activate", "cook report"]
    makefile = (ROOT / "Makefile").read_text()
    assert "VENV ?= .venv" in makefile
    assert "next: . $(BIN)/activate && cook report" in makefile
