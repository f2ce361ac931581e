"""The report of a search: whole, with what little there is, and with names that are markup."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.search_record import ReplayedMix, SearchRecord
from cook.report.canvas import inline_svg
from cook.report.earnings import earnings
from cook.report.html import html
from cook.report.markdown import markdown
from cook.report.search_view import (
    bits_map,
    earning_map,
    front_plot,
    scaled_front,
    search_document,
)
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


def test_the_front_is_scaled_to_the_finalists_prompts() -> None:
    record = search_record()
    (near,) = [p for p in record.front if p.size_bytes == 1_900_000]
    assert near.acceptance_length is not None
    at = dict(scaled_front(record))[1_900_000]
    assert at == pytest.approx((2.81 + 2.83) / 2, abs=1e-3)  # the allocated finalists' mean
    far = replace(record, finalists=record.finalists[:2])
    assert dict(scaled_front(far))[1_900_000] == near.acceptance_length


def test_every_finalist_is_named() -> None:
    plot = front_plot(search_record())
    assert plot is not None
    assert "found: size 1.8 MiB, tokens a cycle 2.83" in plot.alt
    svg = inline_svg(plot)
    for name in ("Q4_K_M", "IQ3_M", "least KLD", "found", "less than 1% to gain"):
        assert name in svg, name


def test_maps_say_types_and_what_bits_earn() -> None:
    record = search_record()
    bits, earns = (make(record, earnings(record)) for make in (bits_map, earning_map))
    assert bits is not None
    assert earns is not None
    assert "output: type q8_0" in bits.alt
    assert "earns 3.4x" in earns.alt
    drawn = inline_svg(bits) + inline_svg(earns)
    for words in ("routed experts", "q4_K  4.50", "q8_0  3.4x", "q2_K is the smallest"):
        assert words in drawn, words


def test_nothing_is_drawn_of_nothing() -> None:
    record = search_record()
    silent = ReplayedMix(3, 0, 0, 0, 0, None)
    finalists = tuple(replace(f, replayed=silent) for f in record.finalists)
    assert front_plot(replace(record, finalists=finalists)) is None
    assert bits_map(record, ()) is None
    assert earning_map(record, earnings(replace(record, spans=record.spans[-1:]))) is None


def test_a_search_without_a_law_has_points_alone() -> None:
    record = search_record()
    bare = replace(record, front=tuple(replace(p, acceptance_length=None) for p in record.front))
    plot = front_plot(bare)
    assert plot is not None
    assert "predicted" not in inline_svg(plot)
