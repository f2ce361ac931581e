"""Maps of layers: as high as their rows, and drawn with what has room."""

from __future__ import annotations

from cook.report.canvas import svg_file
from cook.report.layer_map import LayerCell, map_plot

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
    text = drawn(("one", CELLS))
    for word in ("q8_0  8.50", "narrow", "no figure", "q2_K", "ffn down"):
        assert word in text, word
    assert "no room here" not in text
    text = drawn(("one", CELLS[::-1]))
    places = [text.index(f">{row}<") for row in ("output", "ffn down", "attention")]
    assert places == sorted(places), "rows are in the order of their first cells"


def test_several_maps_stand_next_to_each_other() -> None:
    text = drawn(("one", CELLS), ("other <b>", CELLS[:1]), ("other <b>", CELLS[1:]))
    assert text.count("other &lt;b&gt;") == 2, "also of one title"
