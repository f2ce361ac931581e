"""Drawings: themed, self-contained, and labels are data."""

from __future__ import annotations

import struct
from itertools import combinations
from xml.etree import ElementTree

import pytest

from cook.report.canvas import (
    DARK,
    LIGHT,
    RAMP,
    SERIES,
    WIDTHS,
    Colours,
    LayerCell,
    Named,
    Plot,
    Sheet,
    css,
    inline_svg,
    label,
    map_plot,
    png,
    ramp,
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


def test_labels_are_clean_and_short() -> None:
    assert label("a\nb\u202ec") == "a b\\u202ec"
    assert label("x" * 50) == "x" * 39 + "…"


def named_texts(points: list[tuple[float, float]], names: list[Named]) -> list[ElementTree.Element]:
    """The texts of a plot of ``points`` with these ``names``."""

    def draw(sheet: Sheet) -> None:
        axes = sheet.axes()
        axes.plot([x for x, _ in points], [y for _, y in points], "o")
        axes.set_xlim(*(ends[0] for ends in (points[0], points[-1])))
        sheet.name(axes, names, 9)

    return [*ElementTree.fromstring(inline_svg(Plot("n", "n", "names", draw))).iter(f"{SVG}text")]


def test_names_of_points_that_coincide_do_not_cover_each_other() -> None:
    every = [Named(1, 1, f"name {i}", i == 0) for i in range(4)]
    found = named_texts([(0, 0), (1, 1), (2, 2)], every)
    names = [e for e in found if (e.text or "").startswith("name")]
    assert len(names) == 4
    boxes = []
    for name in names:
        x, y, wide = float(name.get("x", "")), float(name.get("y", "")), 4.5 * len(name.text or "")
        left = x - wide if "end" in name.get("style", "") else x
        boxes.append((left, y - 8, left + wide, y))
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_at_the_edge_a_name_turns_inward() -> None:
    ends = [Named(100, 1, "the last"), Named(0, 0, "the first")]
    styles = {e.text: e.get("style", "") for e in named_texts([(0, 0), (100, 1)], ends)}
    assert "end" in styles["the last"]
    assert "end" not in styles["the first"]


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_light_colours_name_their_variable() -> None:
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert LIGHT.keys() == DARK.keys()
    assert f"--on-dark:{LIGHT['on_dark']};" in css(LIGHT)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_and_marks_stand_out(theme: Colours) -> None:
    for name in ("ink", "muted", "pick"):
        assert contrast(theme[name], theme["page"]) >= 4.5, name
    for index in range(SERIES):
        assert contrast(theme[f"s{index}"], theme["page"]) >= 3, index
    for step in range(RAMP):
        fill, ink = ramp(step + 0.5, 0, RAMP)
        assert fill == f"h{step}"
        assert contrast(theme[fill], theme[ink]) >= 4.5, step


def test_the_ramp_ends_where_its_scale_does() -> None:
    assert [ramp(*scale)[0] for scale in ((-1, 0, 8), (99, 0, 8), (5, 5, 5))] == ["h0", "h7", "h4"]


CELLS = (
    LayerCell("attention", 0, 3, 1.0, ("q8_0  8.50", "8.5")),
    LayerCell("ffn_down", 0, 0, 0.5, ("q4_K with words that have no room here", "narrow")),
    LayerCell("ffn_down", 1, 3, None, ("no figure",)),
    LayerCell("output", None, None, 0.0, ("q2_K",)),
)


def drawn(*maps: tuple[str, tuple[LayerCell, ...]]) -> str:
    return svg_file(map_plot("map", "A map", "a map", maps))


def test_a_map_is_as_high_as_its_rows() -> None:
    low, high = ("low", CELLS[:1]), ("high", CELLS)
    heights = [map_plot("m", "", "", maps).height for maps in ([low], [high], [high, low])]
    assert heights[0] < heights[1] == heights[2]


def test_blocks_hold_what_has_room() -> None:
    text = drawn(("one", CELLS[::-1]))
    for word in ("q8_0  8.50", "narrow", "no figure", "q2_K"):
        assert word in text, word
    assert "no room here" not in text
    places = [text.index(f">{row}<") for row in ("output", "ffn down", "attention")]
    assert places == sorted(places), "rows are in the order of their first cells"
    text = drawn(("one", CELLS), ("other <b>", CELLS[:1]), ("other <b>", CELLS[1:]))
    assert text.count("other &lt;b&gt;") == 2, "maps stand next to each other, also of one title"
