"""What a search prints: the finalists with the one that is returned, and what spans earn."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from cook.output import Mode, Output
from cook.report.search_show import explained, interval_text, shown_search
from cook.report.show import Shown, show
from tests.searches import search_record


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
