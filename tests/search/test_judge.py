"""The verdict: better, a tie, or the recipe's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cook.record.search_record import Family, Finalist
from cook.scoring.compare import FEWEST_PROMPTS
from cook.scoring.fits import LogSpread
from cook.search.evaluate import Replies
from cook.search.judge import MARGIN, Contender, Judged, effect, judge

IDS = tuple(f"p{i}" for i in range(20))


def contender(name: str, family: Family, rate: float, seed: int, noise: float = 0.01) -> Contender:
    rng = np.random.default_rng(seed)
    tokens = np.full(len(IDS), 200.0)
    accepted = np.round(tokens * np.clip(rate + noise * rng.normal(size=len(IDS)), 0, 0.95))
    flat = np.zeros(len(IDS))
    replies = Replies(IDS, ("prose",) * len(IDS), tokens, tokens * 1.5, accepted, flat, flat)
    return Contender(name, family, {"output.weight": "q8_0"}, 1000, replies)


def mine(rate: float, noise: float = 0.01) -> Contender:
    return contender("mine", "given", rate, 1, noise)


def new(rate: float, seed: int = 2, noise: float = 0.01) -> Contender:
    return contender("new", "found", rate, seed, noise)


def finalist(judged: Judged, name: str = "new") -> Finalist:
    return next(f for f in judged.finalists if f.name == name)


FEW = IDS[: FEWEST_PROMPTS - 1]


@pytest.mark.parametrize(
    ("pair", "best", "leader", "verdict", "sentence"),
    [
        ([mine(0.7), new(0.8)], "new", "new", "found", "new is better"),
        ([mine(0.8), new(0.7)], "mine", "mine", "given", "mine stays"),
        # It may be worse by more than the margin; and it is surely not.
        ([mine(0.7, 0.1), new(0.74, 5, 0.1)], "mine", "new", "tie", "mine stays: new has +"),
        ([mine(0.7, 0.002), new(0.7005, 7, 0.002)], "new", "new", "tie", "tie: new has"),
        # Few prompts show nothing.
        (
            [replace(c, replies=c.replies.on(FEW)) for c in (mine(0.6), new(0.8))],
            *("mine", "new", "tie", "mine stays: new has +"),
        ),
        # The best of the recipe is what is compared with.
        (
            [contender("other", "given", 0.6, 3), mine(0.75), new(0.7)],
            *("mine", "mine", "given", "mine stays"),
        ),
    ],
)
def test_what_is_returned_is_better_or_surely_no_worse(
    pair: list[Contender], best: str, leader: str, verdict: str, sentence: str
) -> None:
    judged = judge(pair, 0.95)
    assert (judged.best, judged.leader, judged.given) == (best, leader, "mine")
    assert judged.verdict == verdict
    assert sentence in judged.sentence
    own, found = finalist(judged, "mine"), finalist(judged)
    assert own.gain is None
    assert (leader == "new") == (found.value > own.value)
    if found.gain.interval is not None:
        low, high = found.gain.interval.low, found.gain.interval.high
        assert low < found.gain.value < high
        assert (best == "new") == (low >= -MARGIN * own.value and leader == "new")
        assert (verdict == "found") == (low > 0)
        assert (verdict == "given") == (high < 0)


def test_equals_tie_and_the_recipe_stays() -> None:
    judged = judge([replace(new(0.8), replies=mine(0.8).replies), mine(0.8)], 0.95)
    assert (judged.best, judged.leader, judged.verdict) == ("mine", "mine", "tie")
    assert "nothing that was found has more" in judged.sentence


def test_without_a_quant_that_fits_there_is_nothing_to_be_worse_than() -> None:
    judged = judge([new(0.7), contender("kld", "kld", 0.6, 4)], 0.95)
    assert (judged.best, judged.given, judged.verdict) == ("new", None, "found")
    assert all(f.gain is None for f in judged.finalists)
    assert "no quant of the recipe is so small" in judged.sentence


def test_an_effect_is_the_difference_of_two_ratios() -> None:
    one, other = mine(0.7).replies, new(0.8).replies
    found = effect(other, one, ("tokens", "cycles"), 0.95)
    assert found.value == pytest.approx(other.acceptance_length - one.acceptance_length)
    alone = effect(other, None, ("tokens", "cycles"), 0.95)
    assert alone.value == pytest.approx(other.acceptance_length)


def test_its_interval_covers_the_population() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        tokens = rng.integers(40, 200, (2, 60)).astype(float)[[0, 0]]
        ease = rng.normal(0.6, 0.1, 60) + 0.05 * (np.arange(60) % 4)
        rates = np.clip(np.array([ease + 0.05, ease]) + rng.normal(0, 0.05, (2, 60)), 0, 1)
        names = tuple(map(str, range(60))), tuple(f"c{n % 4}" for n in range(60))
        one, other = (
            Replies(*names, t, t, t * r, t, t) for t, r in zip(tokens, rates, strict=True)
        )
        found = effect(one, other, ("accepted", "tokens"), 0.95)
        hits += found.interval.low <= 0.05 <= found.interval.high
    assert 0.91 <= hits / 300 <= 0.99


def test_the_noise_of_timing_widens_what_is_sought_and_nothing_else() -> None:
    pair = [replace(mine(0.7), cycle_s=1.0e-3), replace(new(0.7), cycle_s=0.9e-3)]
    exact = judge(pair, 0.95)
    assert (exact.best, exact.verdict) == ("new", "found")
    assert "tokens/s" in exact.sentence
    noisy = judge(pair, 0.95, LogSpread(0.2, 10))
    assert (noisy.best, noisy.leader, noisy.verdict) == ("mine", "new", "tie")
    one, other = finalist(exact), finalist(noisy)
    assert other.acceptance_length == one.acceptance_length
    assert other.against_given == one.against_given
    sharp, wide = (f.gain.interval.high - f.gain.interval.low for f in (one, other))
    assert wide > 3 * sharp
