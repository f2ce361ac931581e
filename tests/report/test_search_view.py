"""The report of a search: whole, with what little there is, and with names that are markup."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

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
    interval_text,
    scaled_front,
    search_document,
    shown_search,
)
from cook.report.show import Shown, show
from cook.report.writing import html_page, markdown
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
    page, text = html_page(document), markdown(document, None)
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
    assert "no finalist drafted anything" in html_page(document)


def test_names_are_data_and_paths_stay_here() -> None:
    page = html_page(search_document(hostile()))
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


def printed(what: Shown, mode: Mode = Mode.HUMAN, *, wide: bool = False) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    show(what, Output(mode, out, err), wide=wide)
    return out.getvalue(), err.getvalue()


def test_the_finalists_with_the_best_marked() -> None:
    out, _ = printed(shown_search(search_record()))
    lines = out.splitlines()
    assert " ".join(lines[0].split()) == "mix made by size tokens a cycle over the given"
    assert lines[4].startswith("* found")
    assert "2.83 (2.77-2.89)" in lines[4]
    assert "+0.09 (+0.07 to +0.11)" in lines[4]
    assert "found: found accepts 0.09 tokens a cycle more than Q4_K_M (0.07 to 0.11)" in lines
    assert "gap 0.20%" in out
    assert "beyond 2.2 MiB extra bits buy less than 1.0% of acceptance length" in out


def test_how_well_the_models_predict_is_told_with_the_wide_table() -> None:
    out, err = printed(shown_search(search_record()), wide=True)
    assert "9 q2_K, 4 q8_0, 3 q4_K" in out
    assert "on 3 others the length was off by 0.4%, at most 0.7%" in err
    assert "whole mixes had 0.94 of the sum of their spans' KLD" in err
    assert "decode time: fitted on 8 timed mixes; on 3 others off by 1.2%, at most 2.1%" in err
    assert "kld_results.csv: 12 costs of kld taken, 3 not in it; rank correlation 0.83" in err


def test_a_search_that_measured_little_says_only_what_it_knows() -> None:
    little = replace(
        search_record(),
        law=None,
        decode=None,
        allocation=None,
        csv=None,
        found_recipe=None,
        finalists=search_record().finalists[:1],
        best="Q4_K_M",
        verdict="given",
        sentence="nothing was better",
    )
    out, err = printed(shown_search(little), wide=True)
    assert "given: nothing was better" in out
    assert "None" not in out + err
    assert "explain" not in out


def test_spans_are_explained_those_that_earn_most_first() -> None:
    out, _ = printed(explained(search_record()))
    rows = [line.split()[0] for line in out.splitlines()[1:6]]
    assert rows == ["output", "attention", "attention", "embeddings", "routed_experts"]
    assert out.splitlines()[1].endswith("3.4x")
    assert "earns: nats a byte saves here" in out
    wide, _ = printed(explained(search_record()), wide=True)
    assert "KLD a MiB" in wide


def test_for_programs_rows_alone() -> None:
    out, _ = printed(explained(search_record()), Mode.QUIET)
    assert out.splitlines()[0].split("\t")[1] == "output"
    assert printed(explained(search_record()), Mode.JSON) == ("", "")


def test_a_difference_reads_with_its_interval() -> None:
    effect = search_record().finalists[1].against_given
    assert interval_text(effect) == "-0.08 (-0.10 to -0.06)"
    assert interval_text(None) is None


def span(name: str, chosen: str, *klds: float) -> SearchedSpan:
    """Types a, b, c ... of 100, 200, 300 ... bytes."""
    types = tuple(
        TypeEffect("abc"[n], 100 * (n + 1), "replay", kld=Effect(kld)) for n, kld in enumerate(klds)
    )
    return SearchedSpan(name, "attention", None, None, (name,), 800, "c", chosen, types)


def test_a_span_is_held_against_the_best_use_of_a_byte() -> None:
    few = span("few", "b", 0.5, 0.2, 0.1)  # 3 thousandths a byte kept, 1 gained by more
    many = span("many", "a", 0.4, 0.2, 0.1)  # 2 gained by more: the price
    found = earnings(replace(search_record(), spans=(many, few)))
    assert [e.span.name for e in found] == ["few", "many"]
    first, last = found
    assert first.kld_per_byte == pytest.approx(1.5 * 0.002)
    assert first.times_price == pytest.approx(1.5)
    assert first.saved_bytes == 100
    assert first.kld_more == pytest.approx(0.3)
    assert first.share == pytest.approx(2 / 3)
    assert last.smaller is None
    assert last.times_price is None


def test_a_span_whose_bits_would_be_better_elsewhere_says_so() -> None:
    few, many = span("few", "b", 0.11, 0.1, 0.1), span("many", "a", 0.4, 0.2, 0.1)
    found = earnings(replace(search_record(), spans=(few, many)))
    assert found[0].times_price == pytest.approx(0.05)
    none = replace(search_record(), spans=(span("few", "b", 0.1, 0.1, 0.1), many))
    assert earnings(none)[0].times_price == 0


def test_what_was_split_earns_nothing_itself() -> None:
    names = {e.span.name for e in earnings(search_record())}
    assert "attention" not in names
    assert {"attention 0-1", "attention 2-3"} <= names


def test_costs_that_were_not_measured_are_passed_over() -> None:
    one = span("few", "b", 0.5, 0.2, 0.1)
    unknown = tuple(replace(t, kld=None) for t in one.types)
    bare = earnings(replace(search_record(), spans=(replace(one, types=unknown),)))
    assert bare[0].smaller is None
    assert bare[0].kld_more is None
    assert bare[0].times_price is None
