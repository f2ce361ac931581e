"""Curves between and beyond their points; a draft behind a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve, Link, curve_over_link
from cook.steps.curve import grid_of


def test_a_decode_waits_once_and_for_its_logits() -> None:
    assert Link(0.001).decode_s(150_000) == pytest.approx(0.001)
    gigabit = Link(0.001, 125e6)
    assert gigabit.decode_s(150_000, rows=2) == pytest.approx(0.001 + 0.0096)
    curve = BatchCurve((0, 10), (1, 5), ((0.01, 0.02), (0.03, 0.04)))
    far = curve_over_link(curve, Link(0.005), 1000)
    assert far.at([1, 5], 10) == pytest.approx([0.035, 0.045])
    assert curve_over_link(curve, Link(0.0), 1000) == curve


def test_a_curve_interpolates_and_refuses_what_was_not_measured() -> None:
    curve = BatchCurve((0, 1000), (1, 4), ((1.0, 4.0), (2.0, 6.0)))
    assert curve.at(1, 0) == pytest.approx(1.0)
    assert curve.at(2, 0) == pytest.approx(2.0)
    assert curve.at(4, 500) == pytest.approx(5.0)
    assert curve.at([1, 4], [1000, 1000]) == pytest.approx([2.0, 6.0])
    assert curve.at(1, 1050) == pytest.approx(2.0), "a little beyond the end is the end"
    for width, depth, message in (
        (1, 1051, "after 1051 tokens is to be priced, and measured were depths of 0 to 1000"),
        ([1, 2], [5, 2000], "after 2000 tokens"),
        (7, 0, "a batch of 7 tokens is to be priced, and measured were 1 to 4 tokens at once"),
    ):
        with pytest.raises(InputError, match=message):
            curve.at(width, depth)


def test_more_than_was_timed_at_once_is_read_in_pieces() -> None:
    curve = BatchCurve((0, 1000), (1, 4), ((1.0, 4.0), (2.0, 6.0)))
    assert curve.read([3, 4, 9], 0) == pytest.approx([3.0, 4.0, 2 * 4.0 + 1.0])
    typed = BatchCurve((0,), (1, 4), ((1.0, 4.0),), typed=True)
    assert typed.read(9, 0) == pytest.approx(9.0)


def test_a_typed_curve_goes_on_with_its_last_slope() -> None:
    typed = BatchCurve((0,), (1, 4), ((1.0, 4.0),), typed=True)
    assert typed.at([7, 1], [20_000, 0]) == pytest.approx([7.0, 1.0])
    assert BatchCurve((0,), (1,), ((1.0,),), typed=True).at(16, 9) == pytest.approx(1.0)


@given(st.lists(st.floats(0.99, 1.01), min_size=5, max_size=5), st.integers(300, 20_000))
def test_noise_of_one_per_cent_stays_that_at_any_depth(noise: list[float], depth: int) -> None:
    def true_s(tokens: float) -> float:
        return 0.2 + tokens * 1e-5

    depths = grid_of([300, 20_000], [400, 20_000], 512).depths
    rows = tuple((true_s(d) * n,) for d, n in zip(depths, noise, strict=True))
    found = BatchCurve(depths, (1,), rows).at(1, depth)
    assert found == pytest.approx(true_s(depth), rel=0.0101)


def test_impossible_curves_and_links_are_refused() -> None:
    for link in ((-1.0, None), (0.0, 0.0)):
        with pytest.raises(InputError, match="impossible link"):
            Link(*link)
    for bad in (
        ((0,), (1, 2), ((1.0,),)),
        ((0, 0), (1,), ((1.0,), (1.0,))),
        ((0,), (2, 1), ((1.0, 1.0),)),
        ((0,), (1,), ((0.0,),)),
        ((0,), (1,), ((float("nan"),),)),
    ):
        with pytest.raises(InputError):
            BatchCurve(*bad)
