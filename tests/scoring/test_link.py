"""A draft behind a link: a round trip for every decode, and its logits' way."""

from __future__ import annotations

import pytest

from cook.errors import InputError
from cook.scoring.link import Link, behind
from cook.scoring.price import BatchCurve


def test_a_decode_waits_once_and_for_its_logits() -> None:
    assert Link(0.001).decode_s(150_000) == pytest.approx(0.001)
    gigabit = Link(0.001, 125e6)
    assert gigabit.decode_s(150_000) == pytest.approx(0.001 + 0.0048)
    assert gigabit.decode_s(150_000, rows=2) == pytest.approx(0.001 + 0.0096)


def test_every_batch_is_as_much_later() -> None:
    curve = BatchCurve((0, 10), (1, 5), ((0.01, 0.02), (0.03, 0.04)))
    far = behind(curve, Link(0.005), 1000)
    assert far.at([1, 5], 10) == pytest.approx([0.035, 0.045])
    assert behind(curve, Link(0.0), 1000) == curve


@pytest.mark.parametrize("given", [(-1.0, None), (0.0, 0.0), (0.0, -5.0)])
def test_impossible_links(given: tuple[float, float | None]) -> None:
    with pytest.raises(InputError, match="impossible link"):
        Link(*given)
