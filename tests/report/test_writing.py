"""Files of a report: each whole, and links from Markdown lead to them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path, PurePath
from types import ModuleType
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cook.errors import InputError
from cook.record.record import Record
from cook.report.view import document
from cook.report.writing import MAX_BYTES, fenced, html_page, markdown, text, write_report


def test_writes_page_markdown_and_plots_that_are_linked(
    records: ModuleType, tmp_path: Path
) -> None:
    shown = document(records.record(("A", "B"), (2, 4)))
    places = {"html": "r.html", "markdown": "doc/r.md", "plots": "my plots"}
    written = write_report(shown, **{name: tmp_path / place for name, place in places.items()})
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == set(written)
    assert len(written) == 2 + 3 * len(shown.plots)
    text = (tmp_path / "doc" / "r.md").read_text()
    assert "<details><summary>Figures</summary>" in text
    linked = re.findall(r'(?:src|srcset)="([^" ]+)"', text)
    names = {f"{plot.name}{end}.png" for plot in shown.plots for end in ("", "-dark")}
    assert {PurePath(unquote(link)).name for link in linked} == names
    assert {(tmp_path / "doc" / unquote(link)).resolve() for link in linked} < set(written)


def test_a_place_that_cannot_be_written_is_named(records: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/r\.html") as caught:
        write_report(document(records.bare()), html=tmp_path / "file" / "r.html")
    assert "--html" in (caught.value.hint or "")


@given(st.text())
def test_text_is_one_line_without_markup(value: str) -> None:
    found = text(value)
    assert not re.search(r"[<>|`*\[\]~@$\\\n]", found)
    assert not re.search(r"#(?!\d)", found)
    assert "://" not in found


@given(st.text(alphabet="`~ab\n", max_size=40))
def test_a_code_block_is_not_ended_by_its_content(value: str) -> None:
    lines = fenced(value, "sh").split("\n")
    fence = lines[0].removesuffix("sh")
    assert lines[-1] == fence
    assert not [line for line in lines[1:-1] if line.strip().startswith(fence)]


def test_every_row_has_the_columns_of_its_head(records: ModuleType) -> None:
    for make in (records.record, records.bare, records.hostile):
        for table in re.findall(r"(?:^\|.*\n)+", markdown(document(make())), flags=re.MULTILINE):
            widths = {line.count("|") for line in table.splitlines()}
            assert len(widths) == 1, table[:400]


def test_a_parser_sees_no_markup_but_ours(records: ModuleType) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    shown = document(records.hostile())
    found = markdown(shown, PurePath("p"))
    assert "@everyone" not in re.sub(r"^(`{3,})[^\n]*\n.*?\n\1$", "", found, flags=re.M | re.S)
    tokens = parser.parse(found)
    every = [*tokens, *(child for token in tokens for child in token.children or ())]
    kinds = {token.type for token in every}
    assert not kinds & {"link_open", "image", "s_open", "em_open", "code_inline"}
    ours = re.compile(r"</?(details|summary|picture|source|img)\b")
    for token in every:
        if token.type in ("html_block", "html_inline"):
            for tag in re.findall(r"<[^>]*", token.content):
                assert ours.match(tag), tag
    headings = [t for t in tokens if t.type == "heading_open" and t.tag == "h2"]
    assert len(headings) == sum(not s.folded for s in shown.shown) + bool(shown.absent)


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
def page(request: pytest.FixtureRequest, records: ModuleType) -> str:
    return html_page(document(getattr(records, request.param)()))


def test_is_well_formed_and_under_2_mb(page: str) -> None:
    tags = Page(page)
    assert tags.open == []
    assert len(page.encode()) < MAX_BYTES
    names = [a["id"] for _, a in tags.tags if "id" in a]
    assert len(names) == len(set(names))
    for _, attributes in tags.tags:
        target = attributes.get("xlink:href") or attributes.get("href") or ""
        assert not target.startswith("#") or target[1:] in names


def test_asks_for_nothing_and_runs_nothing(page: str) -> None:
    tags = Page(page).tags
    assert not {"script", "iframe", "object", "embed", "img", "form"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("href", "src", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,"
    assert "default-src 'none'" in page
    assert not re.findall(r"url\((?!#)", page)


def test_text_of_a_record_stays_text(records: ModuleType) -> None:
    words = "".join(Page(html_page(document(records.hostile()))).words)
    for word in records.HOSTILE[:4]:
        assert word in words


def test_first_screen_has_pick_why_confidence_speedup_and_command(record: Record) -> None:
    page = html_page(document(record))
    header = page.partition("<main>")[0]
    words = "".join(Page(header.partition("<body>")[2]).words)
    for wanted in (
        *(str(record.pick.candidate), record.pick.sentence, "Decided"),
        *("1.70x", "1.68 to 1.72 on other such prompts (95%)", "llama-server -m target.gguf"),
    ):
        assert wanted in words
    assert "8080" not in words, "the port is cook's own"
    assert "prefers-color-scheme: dark" in page
    pictures = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "var(--ink)" in pictures, "two themes by variables only"
    assert re.findall(r"#[0-9a-f]{6}", pictures) == []


def test_what_is_absent_says_why(records: ModuleType) -> None:
    page = html_page(document(records.bare()))
    assert "<svg" not in page
    assert "Not in this record" in page
    assert "no importance matrix was made for this record" in page
