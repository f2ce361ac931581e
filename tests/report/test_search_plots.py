"""Pictures of a search: what they say in words, and where they have nothing to show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.search_record import ReplayedMix
from cook.report.canvas import inline_svg
from cook.report.search_plots import bits_map, earning_map, front_plot, scaled_front
from tests.searches import search_record


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
    bits, earns = bits_map(search_record()), earning_map(search_record())
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
    assert bits_map(replace(record, spans=())) is None
    assert earning_map(replace(record, spans=record.spans[-1:])) is None


def test_a_search_without_a_law_has_points_alone() -> None:
    record = search_record()
    bare = replace(record, front=tuple(replace(p, acceptance_length=None) for p in record.front))
    plot = front_plot(bare)
    assert plot is not None
    assert "predicted" not in inline_svg(plot)
