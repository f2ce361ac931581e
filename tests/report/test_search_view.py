"""The report of a search: whole, with what little there is, and with names that are markup."""

from __future__ import annotations

from dataclasses import replace

from cook.record.search_record import SearchRecord
from cook.report.html import html
from cook.report.markdown import markdown
from cook.report.search_view import search_document
from tests.searches import search_record

MARKUP = "<script>alert('$1')</script>"


def bare() -> SearchRecord:
    """A search that ended before it had measured anything."""
    return replace(
        search_record(),
        spans=(),
        evaluations=(),
        law=None,
        decode=None,
        allocation=None,
        front=(),
        finalists=(),
        best="",
        verdict="given",
        found_recipe=None,
        csv=None,
    )


def hostile() -> SearchRecord:
    record = search_record()
    finalists = tuple(replace(f, name=f"{MARKUP}{n}") for n, f in enumerate(record.finalists))
    spans = tuple(replace(s, name=MARKUP, tensors=(MARKUP,)) for s in record.spans)
    return replace(
        record,
        recipe=MARKUP,
        finalists=finalists,
        spans=spans,
        best=finalists[-1].name,
        sentence=MARKUP,
        warnings=(MARKUP,),
        target="/home/someone/models/target.gguf",
        command=("/home/someone/cook", "search", "/home/someone/demo.yaml"),
    )


def test_a_whole_report() -> None:
    document = search_document(search_record())
    assert [s.id for s in document.shown][:3] == ["search-front", "finalists", "spans"]
    page, text = html(document), markdown(document, None)
    for words in ("found: found", "least KLD", "3.4x", "gap 0.20%"):
        assert words in page, words
        assert words in text, words


def test_of_nothing_it_says_why() -> None:
    document = search_document(bare())
    assert {s.id for s in document.absent} == {
        "search-front",
        "finalists",
        "spans",
        "warnings",
        "models",
        "front",
        "evaluations",
    }
    assert "no finalist drafted anything" in html(document)


def test_names_are_data_and_paths_stay_here() -> None:
    page = html(search_document(hostile()))
    assert "<script" not in page
    assert "/home/someone" not in page
    assert "&lt;script&gt;" in page
    assert "cook search demo.yaml" in page
    assert "<script" not in markdown(search_document(hostile()), None)
