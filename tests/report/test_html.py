"""The page: whole, small, self-contained, and nothing of a record is markup in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import ModuleType

import pytest

from cook.record.record import Record
from cook.report.html import MAX_BYTES, html
from cook.report.view import document

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects tags and text, and sees that every element is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module", params=["record", "bare", "hostile"])
def made(request: pytest.FixtureRequest, records: ModuleType) -> tuple[Record, str]:
    record: Record = getattr(records, request.param)()
    return record, html(document(record))


def test_is_well_formed_and_under_2_mb(made: tuple[Record, str]) -> None:
    _, page = made
    assert Page(page).open == []
    assert len(page.encode()) < MAX_BYTES


def test_asks_for_nothing_and_runs_nothing(made: tuple[Record, str]) -> None:
    _, page = made
    tags = Page(page).tags
    assert not {"script", "iframe", "object", "embed", "img", "form"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("href", "src", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,"
    assert "default-src 'none'" in page
    assert not re.findall(r"url\((?!#)", page)


def test_identifiers_are_unique(made: tuple[Record, str]) -> None:
    tags = Page(made[1]).tags
    names = [a["id"] for _, a in tags if "id" in a]
    assert len(names) == len(set(names))
    for _, attributes in tags:
        target = attributes.get("xlink:href") or attributes.get("href") or ""
        assert not target.startswith("#") or target[1:] in names


def test_text_of_a_record_stays_text(records: ModuleType) -> None:
    record = records.hostile()
    words = "".join(Page(html(document(record))).words)
    for text in records.HOSTILE[:4]:
        assert text in words


def test_first_screen_has_pick_why_confidence_speedup_and_command(records: ModuleType) -> None:
    record = records.record()
    header = html(document(record)).partition("<main>")[0]
    words = "".join(Page(header.partition("<body>")[2]).words)
    for wanted in (
        record.pick.candidate,
        record.pick.sentence,
        "1.70x",
        "1.67 to 1.73 on other such prompts (95%)",
        "Decided",
        "llama-server -m target.gguf",
    ):
        assert wanted in words
    assert "8080" not in words, "the port is cook's own"


def test_what_is_absent_says_why(records: ModuleType) -> None:
    page = html(document(records.bare()))
    assert "<svg" not in page
    assert "Not in this record" in page
    assert "no importance matrix was made for this record" in page


def test_two_themes_by_variables_only(records: ModuleType) -> None:
    page = html(document(records.record()))
    assert "prefers-color-scheme: dark" in page
    pictures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "var(--ink)" in pictures
    assert re.findall(r"#[0-9a-f]{6}", pictures) == []
