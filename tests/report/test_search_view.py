"""The report of a search: whole, with what little there is, and with names that are markup."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from cook.output import Mode, Output
from cook.record.search_record import Effect, ReplayedMix, SearchedSpan, SearchRecord, TypeEffect
from cook.report.canvas import inline_svg
from cook.report.search_view import (
    bits_map,
    earning_map,
    earnings,
    explained,
    front_plot,
    scaled_front,
    search_document,
    shown_search,
)
from cook.report.show import Shown, show
from cook.report.writing import html_page, markdown
from tests.searches import search_record

MARKUP = "<script>alert('$1')</script>"
UNKNOWN: dict[str, Any] = dict.fromkeys(("law", "decode", "allocation", "csv", "found_recipe"))


@pytest.fixture
def record() -> SearchRecord:
    return search_record()


def test_a_whole_report(record: SearchRecord) -> None:
    document = search_document(record)
    assert [s.id for s in document.shown][:3] == ["search-front", "finalists", "spans"]
    for form in (html_page(document), markdown(document, None)):
        for words in ("found: found", "least KLD", "3.4x", "gap 0.20%"):
            assert words in form, words


def test_of_nothing_it_says_why(record: SearchRecord) -> None:
    """A search that ended before it had measured anything."""
    nothing: dict[str, Any] = dict.fromkeys(("spans", "evaluations", "front", "finalists"), ())
    document = search_document(replace(record, **nothing, **UNKNOWN, best="", verdict="given"))
    assert {s.id for s in document.absent} == {
        *("search-front", "finalists", "spans", "warnings", "models", "front", "evaluations")
    }
    assert "no finalist drafted anything" in html_page(document)


def test_names_are_data_and_paths_stay_here(record: SearchRecord) -> None:
    finalists = tuple(replace(f, name=f"{MARKUP}{n}") for n, f in enumerate(record.finalists))
    texts: dict[str, Any] = dict.fromkeys(("recipe", "sentence"), MARKUP)
    hostile = replace(
        record,
        **texts,
        finalists=finalists,
        spans=tuple(replace(s, name=MARKUP, tensors=(MARKUP,)) for s in record.spans),
        best=finalists[-1].name,
        warnings=(MARKUP,),
        target="/home/someone/models/target.gguf",
        command=("/home/someone/cook", "search", "/home/someone/demo.yaml"),
    )
    page = html_page(search_document(hostile))
    assert "/home/someone" not in page
    assert "&lt;script&gt;" in page
    assert "cook search demo.yaml" in page
    for form in (page, markdown(search_document(hostile), None)):
        assert "<script" not in form


def test_the_front_is_scaled_to_the_finalists_prompts(record: SearchRecord) -> None:
    (near,) = [p for p in record.front if p.size_bytes == 1_900_000]
    at = dict(scaled_front(record))[1_900_000]
    assert at == pytest.approx((2.81 + 2.83) / 2, abs=1e-3)  # the allocated finalists' mean
    far = replace(record, finalists=record.finalists[:2])
    assert dict(scaled_front(far))[1_900_000] == near.acceptance_length


def test_every_finalist_is_named_on_the_front(record: SearchRecord) -> None:
    plot = front_plot(record)
    assert plot is not None
    assert "found: size 1.8 MiB, tokens a cycle 2.83" in plot.alt
    svg = inline_svg(plot)
    for name in ("Q4_K_M", "IQ3_M", "least KLD", "found", "less than 1% to gain", "predicted"):
        assert name in svg, name
    unfitted = tuple(replace(p, acceptance_length=None) for p in record.front)
    points_alone = front_plot(replace(record, front=unfitted))
    assert points_alone is not None
    assert "predicted" not in inline_svg(points_alone)


def test_maps_say_types_and_what_bits_earn(record: SearchRecord) -> None:
    bits, earns = (make(record, earnings(record)) for make in (bits_map, earning_map))
    assert bits is not None
    assert earns is not None
    assert "output: type q8_0" in bits.alt
    assert "earns 3.4x" in earns.alt
    drawn = inline_svg(bits) + inline_svg(earns)
    for words in ("routed experts", "q4_K  4.50", "q8_0  3.4x", "q2_K is the smallest"):
        assert words in drawn, words


def test_nothing_is_drawn_of_nothing(record: SearchRecord) -> None:
    silent = ReplayedMix(3, 0, 0, 0, 0, None)
    finalists = tuple(replace(f, replayed=silent) for f in record.finalists)
    assert front_plot(replace(record, finalists=finalists)) is None
    assert bits_map(record, ()) is None
    assert earning_map(record, earnings(replace(record, spans=record.spans[-1:]))) is None


def printed(what: Shown, mode: Mode = Mode.HUMAN, *, wide: bool = False) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    show(what, Output(mode, out, err), wide=wide)
    return out.getvalue(), err.getvalue()


def test_the_finalists_with_the_best_marked(record: SearchRecord) -> None:
    lines = printed(shown_search(record))[0].splitlines()
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "mix made by size tokens a cycle over the given",
        "Q4_K_M the recipe given 1.8 MiB 2.74 (2.68-2.80) -",
        "IQ3_M the engine's mixture 1.8 MiB 2.66 (2.60-2.72) -0.08 (-0.10 to -0.06)",
        "least KLD least KLD 1.8 MiB 2.81 (2.75-2.87) +0.07 (+0.05 to +0.09)",
        "* found the search 1.8 MiB 2.83 (2.77-2.89) +0.09 (+0.07 to +0.11)",
        "",
    ]
    assert lines[6:] == [
        "found: found accepts 0.09 tokens a cycle more than Q4_K_M (0.07 to 0.11)",
        "prompts: judged on 3 that the search did not see; it saw 3, and 2 others made the "
        "importance matrix",
        "cost: 3 evaluations in 3 min 03 s",
        "allocation: added KLD 0.0512 nats in 1.8 MiB, and no mix of that size has less than "
        "0.0511 by the measured costs (gap 0.20%)",
        "size: beyond 2.2 MiB extra bits buy less than 1.0% of acceptance length",
        "why: `cook search --explain` shows which spans earn their bits",
    ]


def test_how_well_the_models_predict_stands_with_the_wide_table(record: SearchRecord) -> None:
    out, err = printed(shown_search(record), wide=True)
    assert "9 q2_K, 4 q8_0, 3 q4_K" in out
    assert "on 3 others the length was off by 0.4%, at most 0.7%" in err
    assert "whole mixes had 0.94 of the sum of their spans' KLD" in err
    assert "decode time: fitted on 8 timed mixes; on 3 others off by 1.2%, at most 2.1%" in err
    assert "kld_results.csv: 12 costs of kld taken, 3 not in it; rank correlation 0.83" in err


def test_a_search_that_measured_little_says_only_what_it_knows(record: SearchRecord) -> None:
    little = replace(record, **UNKNOWN, finalists=record.finalists[:1], best="Q4_K_M")
    little = replace(little, verdict="given", sentence="nothing was better")
    out, err = printed(shown_search(little), wide=True)
    assert "given: nothing was better" in out
    assert "None" not in out + err
    assert "explain" not in out


def test_spans_are_explained_those_that_earn_most_first(record: SearchRecord) -> None:
    out, _ = printed(explained(record))
    rows = [line.split()[0] for line in out.splitlines()[1:6]]
    assert rows == ["output", "attention", "attention", "embeddings", "routed_experts"]
    assert out.splitlines()[1].endswith("3.4x")
    assert "earns: nats a byte saves here" in out
    assert "KLD a MiB" in printed(explained(record), wide=True)[0]
    quiet, _ = printed(explained(record), Mode.QUIET)
    assert quiet.splitlines()[0].split("\t")[1] == "output", "rows alone"
    assert printed(explained(record), Mode.JSON) == ("", "")


def span(name: str, chosen: str, *klds: float) -> SearchedSpan:
    """Types a, b, c ... of 100, 200, 300 ... bytes."""
    types = tuple(
        TypeEffect("abc"[n], 100 * (n + 1), "replay", kld=Effect(kld)) for n, kld in enumerate(klds)
    )
    return SearchedSpan(name, "attention", None, None, (name,), 800, "c", chosen, types)


MANY = span("many", "a", 0.4, 0.2, 0.1)  # 2 thousandths a byte gained by more: the price


def test_a_span_is_held_against_the_best_use_of_a_byte(record: SearchRecord) -> None:
    few = span("few", "b", 0.5, 0.2, 0.1)  # 3 thousandths a byte kept, 1 gained by more
    first, last = earnings(replace(record, spans=(MANY, few)))
    assert (first.span.name, last.span.name) == ("few", "many")
    assert first.kld_per_byte == pytest.approx(1.5 * 0.002)
    assert first.times_price == pytest.approx(1.5)
    assert first.saved_bytes == 100
    assert first.kld_more == pytest.approx(0.3)
    assert first.share == pytest.approx(2 / 3)
    assert (last.smaller, last.times_price) == (None, None)


@pytest.mark.parametrize(("kld", "times"), [(0.11, 0.05), (0.1, 0.0)])
def test_a_span_whose_bits_would_be_better_elsewhere_says_so(
    record: SearchRecord, kld: float, times: float
) -> None:
    found = earnings(replace(record, spans=(span("few", "b", kld, 0.1, 0.1), MANY)))
    assert found[0].times_price == pytest.approx(times)


def test_what_was_split_or_not_measured_earns_nothing(record: SearchRecord) -> None:
    names = {e.span.name for e in earnings(record)}
    assert "attention" not in names
    assert {"attention 0-1", "attention 2-3"} <= names
    unknown = tuple(replace(t, kld=None) for t in MANY.types)
    (bare,) = earnings(replace(record, spans=(replace(MANY, chosen="b", types=unknown),)))
    assert (bare.smaller, bare.kld_more, bare.times_price) == (None, None, None)
