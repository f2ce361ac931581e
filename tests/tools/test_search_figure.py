"""The picture shows what the tables say."""

from __future__ import annotations

import pytest

from bench.search_contests import HAND
from cook.report.canvas import svg_file
from tools.mix_table import MixTable, table_of
from tools.search_figure import IMAGE, LINES, Panel, contests_plot, panel


@pytest.fixture(scope="module")
def shown() -> Panel:
    return panel("demo", MixTable.read(table_of("demo")), 3)


def test_every_finalist_has_a_point_a_size_and_every_recipe_its_own(shown: Panel) -> None:
    assert set(shown.lines) == set(LINES)
    assert {len(points) for points in shown.lines.values()} == {3}
    assert set(shown.by_hand) == set(HAND)
    assert all(length > 1 for points in shown.lines.values() for _, length in points)


def test_the_picture_says_in_words_what_it_shows(shown: Panel) -> None:
    plot = contests_plot([shown])
    svg = svg_file(plot)
    for name, (size, length) in shown.by_hand.items():
        assert f"{name} {length:.2f} in {size:.2f}" in plot.alt
        assert f">{name}<" in svg
    assert plot.alt.count("tokens a cycle in") == 3


def test_the_picture_of_the_docs_is_of_both_families() -> None:
    svg = IMAGE.read_text(encoding="utf-8")
    assert "a mixture of experts" in svg
    assert "a dense model" in svg
