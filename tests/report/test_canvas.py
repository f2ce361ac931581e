"""Drawings: themed, self-contained, and labels are data."""

from __future__ import annotations

import struct
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.report.canvas import (
    OFFSETS,
    WIDTHS,
    Named,
    Plot,
    Sheet,
    box,
    inline_svg,
    label,
    overlap,
    places,
    png,
    svg_file,
)

NASTY = '"><script>alert(1)</script> id="a" $\\frac$ #1c2127; : #1c2127'
SVG = "{http://www.w3.org/2000/svg}"


def plot(name: str = "sample") -> Plot:
    def draw(sheet: Sheet) -> None:
        axes = sheet.axes("x", NASTY)
        for index in range(3):
            colour, marker = sheet.series(index)
            axes.plot([1, 2], [index, 3], marker=marker, color=colour, label=f"{index} {NASTY}")
        sheet.ring(axes, 1, 1)
        sheet.legend(axes)

    return Plot(name, "A <plot>", f"says {NASTY}", draw)


def test_inline_svg_is_drawn_at_its_width_with_labels_as_they_are() -> None:
    root = ElementTree.fromstring(inline_svg(plot()))
    assert root.get("viewBox", "").split()[2] == str(WIDTHS["half"])
    assert root.get("width") is None
    assert root.get("aria-label") == f"says {NASTY}"
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert NASTY in words
    assert f"1 {NASTY}" in words
    assert not list(root.iter(f"{SVG}script"))


def test_colours_are_variables_and_nothing_else() -> None:
    root = ElementTree.fromstring(inline_svg(plot()))
    styles = " ".join(element.get("style", "") for element in root.iter())
    assert "#" not in styles.replace("url(#", "")
    for name in ("ink", "s0", "pick"):
        assert f"var(--{name})" in styles


def test_identifiers_of_two_drawings_do_not_meet() -> None:
    found = []
    for svg in (inline_svg(plot("a")), inline_svg(plot("b"))):
        root = ElementTree.fromstring(svg)
        found += [e.get("id") for e in root.iter() if e.get("id")]
    assert found
    assert len(found) == len(set(found))


def test_the_same_plot_is_the_same_bytes() -> None:
    assert inline_svg(plot()) == inline_svg(plot())
    assert png(plot()) == png(plot())


def test_svg_file_follows_the_readers_theme() -> None:
    root = ElementTree.fromstring(svg_file(plot()))
    assert (root.get("width"), root.get("height")) == ("430", "330")
    style = root.find(f"{SVG}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert root.findtext(f"{SVG}title") == "A <plot>"


def test_png_has_twice_the_pixels_and_a_dark_twin() -> None:
    light, dark = png(plot()), png(plot(), dark=True)
    assert struct.unpack(">II", light[16:24]) == (860, 660)
    assert light != dark


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\u202ec", "a b\\u202ec"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_labels_are_clean_and_short(given: str, shown: str) -> None:
    assert label(given) == shown


def test_names_of_points_that_coincide_do_not_cover_each_other() -> None:
    def draw(sheet: Sheet) -> None:
        axes = sheet.axes()
        axes.plot([0, 1, 2], [0, 1, 2], "o")
        sheet.name(axes, [Named(1, 1, f"name {i}", i == 0) for i in range(4)], 9)

    root = ElementTree.fromstring(inline_svg(Plot("n", "n", "names", draw)))
    names = [e for e in root.iter(f"{SVG}text") if (e.text or "").startswith("name")]
    places = {(e.get("x"), e.get("y"), "end" in e.get("style", "")) for e in names}
    assert len(names) == len(places) == 4


spots = st.lists(st.tuples(st.floats(0, 500), st.floats(0, 300)), max_size=15)


@given(spots, st.floats(10, 120))
def test_every_point_gets_an_offset(points: list[tuple[float, float]], width: float) -> None:
    found = places(points, [width] * len(points), 0, 500)
    assert len(found) == len(points)
    assert set(found) <= set(OFFSETS)


def test_a_lone_name_stands_right_above_its_point() -> None:
    assert places([(100, 100)], [50], 0, 500) == [OFFSETS[0]]


def test_at_the_edge_it_turns_inward() -> None:
    ((dx, _),) = places([(490, 100)], [50], 0, 500)
    assert dx < 0


def test_names_of_coinciding_points_do_not_meet() -> None:
    points = [(200.0, 100.0)] * 6
    boxes = [box(p, 60, o) for p, o in zip(points, places(points, [60] * 6, 0, 500), strict=True)]
    assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if overlap(a, b)]


def test_overlap_is_an_area() -> None:
    assert overlap((0, 0, 4, 4), (2, 1, 9, 3)) == 4
    assert overlap((0, 0, 1, 1), (1, 1, 2, 2)) == 0
