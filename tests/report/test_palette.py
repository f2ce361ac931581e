"""Colours that can be told apart and read in both themes."""

from __future__ import annotations

import pytest

from cook.report.palette import DARK, LIGHT, RAMP, SERIES, Colours, css, ramp


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


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_reads_on_every_step_of_the_ramp(theme: Colours) -> None:
    for step in range(RAMP):
        fill, ink = ramp(step + 0.5, 0, RAMP)
        assert fill == f"h{step}"
        assert contrast(theme[fill], theme[ink]) >= 4.5, step


def test_the_ramp_ends_where_its_scale_does() -> None:
    assert ramp(-1, 0, 8)[0] == "h0"
    assert ramp(99, 0, 8)[0] == "h7"
    assert ramp(5, 5, 5)[0] == "h4"
