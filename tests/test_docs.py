"""The documents: generated ones fresh; links, cited pages, named files and commands real.

Code cites a page by its path from the root, with the heading's anchor where it means one section.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cook import __version__, engine_setup
from cook.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
INTERNALS = ROOT / "docs" / "internals"
CODE = sorted(
    path
    for folder, kinds in (
        *((name, ("*.py", "*.c", "*.h")) for name in ("cook", "tests", "bench", "tools")),
        *((name, ("*.yaml", "*.yml")) for name in ("recipes", "pipelines", ".github")),
        (".", ("Makefile", "pyproject.toml", ".ci/run")),
    )
    for kind in kinds
    for path in (ROOT.glob(kind) if folder == "." else (ROOT / folder).rglob(kind))
)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name / "README.md" for name in ("imatrix", "pipelines", "cook/prompts")),
    ]
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

CITED = re.compile(r"(?<![\w/.-])(docs/[\w./-]+?\.md)(?:#([\w-]*))?")
BARE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(p.stem for p in INTERNALS.glob('*.md'))})\.md")
LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
NAMED = re.compile(r"`((?:cook|tests|bench|tools|docs|recipes|pipelines)/[\w./-]+)`")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the headings of ``page``, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown).strip().lower().replace(" ", "-")
        times = found[slug] = found.get(slug, -1) + 1
        if times:
            found[f"{slug}-{times}"] = 0
    return frozenset(found)


def faults(text: str) -> Iterator[str]:
    """Every citation in ``text`` of a page of ours that leads nowhere, and why."""
    for found in CITED.finditer(text):
        page, anchor = ROOT / found[1], found[2]
        if not page.is_file():
            yield f"{found[0]}: there is no such page"
        elif anchor is not None and anchor not in anchors(page):
            yield f"{found[0]}: the page has no such heading"
    for found in BARE.finditer(text):
        yield f"{found[0]}: say docs/internals/{found[0]}#heading"


def test_what_code_cites_is_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}" for path in CODE for fault in faults(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_pages_on_engines_and_scoring_are_cited() -> None:
    cited = {found[1] for path in CODE for found in CITED.finditer(path.read_text())}
    assert {"docs/internals/engines.md", "docs/internals/scoring.md"} <= cited


def test_what_leads_nowhere_is_found() -> None:
    page = "docs/internals/scoring.md"
    assert list(faults(f"see {page}, {page}#the-loop. And ggml/{page} is not ours.")) == []
    for wrong in (f"{page}#no-such-heading", f"docs/{Path(page).name}", f"{Path(page).name} 2.4"):
        assert len(list(faults(f"as in {wrong}, section 3"))) == 1
    wrapped = f"{page}#the-\nloop"
    assert len(list(faults(wrapped))) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_local_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for target, anchor in LINK.findall(text):
        if "://" not in target:
            to = page.parent / target if target else page
            assert anchor in anchors(to), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    fenced = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"^cook ([a-z]+)", "\n".join(fenced), flags=re.MULTILINE):
        assert name in COMMANDS, f"cook {name}"
    for name in re.findall(r"\brecipes/([\w.-]+\.yaml)", text):
        assert (ROOT / "recipes" / name).is_file(), f"recipes/{name}"
    if page.parent == INTERNALS or page.name == "CONTRIBUTING.md":
        assert [name for name in NAMED.findall(text) if not (ROOT / name).exists()] == []
    assert not re.search(r"^(?:<{7} |>{7} )", text, re.MULTILINE), "two versions of itself"


def test_the_hops_of_the_walks_are_in_their_modules() -> None:
    """A function or class that a page places in a module is defined there."""
    said = re.compile(r"`([\w.]+)(?:\(\))?`\s+(?:in|of)\s+`(cook/[\w/]+\.py)`")
    found = {
        hop
        for page in (ROOT / "docs/internals/architecture.md", ROOT / "CONTRIBUTING.md")
        for hop in said.findall(page.read_text())
    }
    assert len(found) > 20
    wrong = [
        f"{name} in {module}"
        for name, module in found
        if not re.search(
            rf"(?:def|class) {name.split('.')[-1]}\b|^{name}\b.* = ",
            (ROOT / module).read_text("utf-8"),
            re.MULTILINE,
        )
    ]
    assert wrong == []


def test_generated_files_are_fresh() -> None:
    argv = [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
    """`cook` is in the environment that make made, which no shell knows of its own accord."""
    block = re.search(r"^```sh\n(make demo.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert block is not None
    lines = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert lines == ["make demo", ". .venv/bin/activate", "cook report"]
    makefile = (ROOT / "Makefile").read_text()
    assert "VENV ?= .venv" in makefile
    assert "next: . $(BIN)/activate && cook report" in makefile
