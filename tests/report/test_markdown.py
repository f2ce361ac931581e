"""Markdown that stands by itself, and from which nothing of a record can break out."""

from __future__ import annotations

import re
from pathlib import PurePath
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cook.report.markdown import fenced, markdown, text
from cook.report.view import document


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


def test_pictures_are_linked_relative_to_the_file(records: ModuleType) -> None:
    shown = document(records.record())
    found = markdown(shown, PurePath("../my plots"))
    for plot in shown.plots:
        assert f'src="../my%20plots/{plot.name}.png"' in found
        assert f'srcset="../my%20plots/{plot.name}-dark.png"' in found
    assert "<details><summary>Figures</summary>" in found


def test_hostile_names_are_inert(records: ModuleType) -> None:
    found = markdown(document(records.hostile()), PurePath("p"))
    prose = re.sub(r"^(`{3,})[^\n]*\n.*?\n\1$", "", found, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in prose
    assert "<img src=x" not in prose
    assert "](javascript" not in prose
    assert "@everyone" not in prose


def test_a_parser_sees_no_markup_but_ours(records: ModuleType) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    shown = document(records.hostile())
    tokens = parser.parse(markdown(shown, PurePath("p")))
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
