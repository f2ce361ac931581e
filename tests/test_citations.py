"""What code and documents cite is there: the page, its heading, and the files that pages name.

Code cites a page by its path from the root, with the heading's anchor where it means one section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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


def test_what_leads_nowhere_is_told() -> None:
    page = "docs/internals/scoring.md"
    assert list(faults(f"see {page}, {page}#the-loop. And ggml/{page} is not ours.")) == []
    for wrong in (f"{page}#no-such-heading", f"docs/{Path(page).name}", f"{Path(page).name} 2.4"):
        assert len(list(faults(f"as in {wrong}, section 3"))) == 1
    wrapped = f"{page}#the-\nloop"
    assert len(list(faults(wrapped))) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" not in target:
            to = page.parent / target if target else page
            assert anchor in anchors(to), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize(
    "page", [*sorted(INTERNALS.glob("*.md")), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()]
    assert not missing, f"{page.name}: {', '.join(missing)}"


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
            rf"(?:def|class) {name.split('.')[-1]}\b|^{name}\b.* = ", _text(module), re.MULTILINE
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_page_holds_two_versions_of_itself(page: Path) -> None:
    assert not re.search(r"^(?:<{7} |>{7} )", page.read_text(), re.MULTILINE)


def _text(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")
