"""Inversions between the two orders."""

from __future__ import annotations

from cook.report.sections.ranks import Ranked, inversions


def ranked(name: str, perplexity: float, acceptance: float, error: float = 0.1) -> Ranked:
    return Ranked(name, perplexity, error, acceptance, "1/2")


def test_pairs_that_change_places_widest_first() -> None:
    a, b, c = ranked("a", 4.0, 0.6), ranked("b", 4.1, 0.65), ranked("c", 5.0, 0.9)
    found = inversions([a, b, c])
    assert [(p.better.name, p.worse.name) for p in found] == [("a", "c"), ("b", "c"), ("a", "b")]
    assert [p.beyond_errors for p in found] == [True, True, False]


def test_equal_figures_are_no_inversion() -> None:
    assert inversions([ranked("a", 4.0, 0.6), ranked("b", 4.0, 0.7), ranked("c", 5.0, 0.6)]) == []
