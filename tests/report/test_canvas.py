"""Drawings: themed, self-contained, and labels are data."""

from __future__ import annotations

import struct
from itertools import combinations
from xml.etree import ElementTree

import pytest

from cook.report.canvas import WIDTHS, Named, Plot, Sheet, inline_svg, label, png, svg_file

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


def test_the_same_plot_is_the_same_bytes() -> None:
    assert inline_svg(plot()) == inline_svg(plot())
    assert png(plot()) == png(plot())


def test_svg_file_follows_the_readers_theme() -> None:
    root = ElementTree.fromstring(svg_file(plot()))
    assert (root.get("width"), root.get("height")) == ("430", "330")
    style = root.find(f"{SVG}style")
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
    assert len(names) == 4
    boxes = []
    for name in names:
        x, y, wide = float(name.get("x", "")), float(name.get("y", "")), 4.5 * len(name.text or "")
        left = x - wide if "end" in name.get("style", "") else x
        boxes.append((left, y - 8, left + wide, y))
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_at_the_edge_a_name_turns_inward() -> None:
    def draw(sheet: Sheet) -> None:
        axes = sheet.axes()
        axes.plot([0, 100], [0, 1], "o")
        axes.set_xlim(0, 100)
        sheet.name(axes, [Named(100, 1, "the last"), Named(0, 0, "the first")], 9)

    root = ElementTree.fromstring(inline_svg(Plot("n", "n", "names", draw)))
    styles = {e.text: e.get("style", "") for e in root.iter(f"{SVG}text")}
    assert "end" in styles["the last"]
    assert "end" not in styles["the first"]
