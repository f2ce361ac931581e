"""The page in a real Chromium: no error, no overflow, in both themes, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from cook.report.view import document
from cook.report.writing import html_page
from tools.screenshot import chromium, program, reduced

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Request

pytestmark = pytest.mark.browser
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
KINDS = ("record", "bare", "hostile")
OUTSIDE = """width => [...document.querySelectorAll('body *')]
  .filter(e => !e.parentElement.closest('.scroll, pre, svg'))
  .filter(e => e.getBoundingClientRect().right > width + 0.5)
  .map(e => e.outerHTML.slice(0, 120))"""

ROWS_OF_TILES = """tiles => {
  const facts = document.querySelector('.facts'), rows = {};
  while (facts.children.length > tiles) facts.lastElementChild.remove();
  for (const tile of facts.children) {
    const box = tile.getBoundingClientRect();
    (rows[Math.round(box.top)] ||= []).push(box.width);
  }
  return {inside: facts.clientWidth, rows: Object.values(rows)};
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    if program() is None:
        pytest.skip("THE REPORT WAS NOT SEEN IN A BROWSER: no chromium (apt install chromium)")
    with chromium() as context:
        yield context


@pytest.fixture(scope="module")
def files(records: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pages")
    found = {}
    for kind in KINDS:
        found[kind] = directory / f"{kind}.html"
        found[kind].write_text(html_page(document(getattr(records, kind)())), encoding="utf-8")
    return found


@contextmanager
def opened(
    browser: BrowserContext, file: Path, width: int, theme: str = "light"
) -> Iterator[tuple[Page, list[str]]]:
    """The page and what it complained of: console, exceptions, requests."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))

    def requested(request: Request) -> None:
        if not request.is_navigation_request():
            complaints.append(request.url)

    page.on("request", requested)
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    try:
        page.goto(file.as_uri())
        yield page, [c for c in complaints if not c.startswith("data:,")]
    finally:
        page.close()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_opens_without_complaint_and_fits_the_screen(
    browser: BrowserContext, files: dict[str, Path], kind: str, width: int, theme: str
) -> None:
    with opened(browser, files[kind], width, theme) as (page, complaints):
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert complaints == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OUTSIDE, width) == []


@pytest.mark.parametrize("width", [1280, 900, 390])
@pytest.mark.parametrize("tiles", range(2, 7))
def test_tiles_leave_no_hole(
    browser: BrowserContext, files: dict[str, Path], tiles: int, width: int
) -> None:
    """A pick without a draft file, an n-gram rival, has a tile less: a grey one stood there."""
    with opened(browser, files["record"], width) as (page, _):
        found = page.evaluate(ROWS_OF_TILES, tiles)
    inside, rows = found["inside"], found["rows"]
    assert sum(len(row) for row in rows) == tiles
    for row in rows:
        assert sum(row) + len(row) - 1 == pytest.approx(inside, abs=1.5), found


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_plots_are_readable_on_their_background(
    browser: BrowserContext, files: dict[str, Path], theme: str
) -> None:
    """Contrast of at least 4.5 for all words (WCAG AA), letters of at least 8.5 px on a phone."""
    with opened(browser, files["record"], 390, theme) as (page, _):
        found = page.evaluate(Path(__file__).with_name("readable.js").read_text())
    assert found["count"] > 50
    assert min(found["words"], found["labels"]) >= 4.5
    assert found["letters"] >= 8.5


def test_the_readmes_picture_is_small(browser: BrowserContext, files: dict[str, Path]) -> None:
    with opened(browser, files["record"], 1280) as (page, _):
        picture = page.screenshot()
    assert len(reduced(picture)) < 300_000
