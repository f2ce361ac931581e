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


def finalist(judged: Judged, name: str = "new") -> Finalist:
    return next(f for f in judged.finalists if f.name == name)


def test_a_better_mix_is_found() -> None:
    judged = judge([contender("mine", "given", 0.7, 1), contender("new", "found", 0.8, 2)], 0.95)
    assert (judged.best, judged.given, judged.verdict) == ("new", "mine", "found")
    gain = finalist(judged).against_given
    assert 0 < gain.interval.low < gain.value < gain.interval.high
    assert "new is better" in judged.sentence


def test_the_recipe_stays_where_what_was_found_is_worse() -> None:
    judged = judge([contender("mine", "given", 0.8, 1), contender("new", "found", 0.7, 2)], 0.95)
    assert (judged.best, judged.verdict) == ("mine", "given")
    assert "mine stays" in judged.sentence


def test_equals_tie_and_the_recipe_stays() -> None:
    mine = contender("mine", "given", 0.8, 1)
    same = Contender("new", "found", mine.types, 1000, mine.replies)
    judged = judge([mine, same], 0.95)
    assert (judged.best, judged.leader, judged.verdict) == ("mine", "mine", "tie")
    assert "nothing that was found has more" in judged.sentence


def test_a_tie_that_may_be_worse_by_more_than_the_margin_leaves_the_recipe() -> None:
    pair = [contender("mine", "given", 0.70, 1, 0.1), contender("new", "found", 0.74, 5, 0.1)]
    judged = judge(pair, 0.95)
    assert finalist(judged).value > finalist(judged, "mine").value
    assert (judged.best, judged.leader, judged.verdict) == ("mine", "new", "tie")
    assert "tie: mine stays: new has +" in judged.sentence


def test_a_tie_that_is_surely_no_worse_than_the_margin_is_returned() -> None:
    pair = [contender("mine", "given", 0.7, 1, 0.002), contender("new", "found", 0.7005, 7, 0.002)]
    judged = judge(pair, 0.95)
    gain = finalist(judged).gain
    assert -MARGIN * finalist(judged, "mine").value <= gain.interval.low < 0 < gain.value
    assert (judged.best, judged.verdict) == ("new", "tie")
    assert "tie: new has" in judged.sentence


def test_few_prompts_show_nothing_and_the_recipe_stays() -> None:
    few = IDS[: FEWEST_PROMPTS - 1]
    pair = [contender("mine", "given", 0.6, 1), contender("new", "found", 0.8, 2)]
    judged = judge([replace(c, replies=c.replies.on(few)) for c in pair], 0.95)
    assert (judged.best, judged.verdict) == ("mine", "tie")


def test_the_best_of_the_recipe_is_what_is_compared_with() -> None:
    own = [contender("a", "given", 0.6, 1), contender("b", "given", 0.75, 2)]
    judged = judge([*own, contender("new", "found", 0.7, 3)], 0.95)
    assert judged.given == judged.best == "b"


def test_without_a_quant_that_fits_there_is_nothing_to_be_worse_than() -> None:
    judged = judge([contender("new", "found", 0.7, 3), contender("kld", "kld", 0.6, 4)], 0.95)
    assert (judged.best, judged.given, judged.verdict) == ("new", None, "found")
    assert all(f.gain is None for f in judged.finalists)
    assert "no quant of the recipe is so small" in judged.sentence


def test_an_effect_is_the_difference_of_two_ratios() -> None:
    one, other = contender("a", "given", 0.7, 1).replies, contender("b", "found", 0.8, 2).replies
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
        one, other = (
            Replies(
                tuple(map(str, range(60))), tuple(f"c{n % 4}" for n in range(60)), t, t, t * r, t, t
            )
            for t, r in zip(tokens, rates, strict=True)
        )
        found = effect(one, other, ("accepted", "tokens"), 0.95)
        hits += found.interval.low <= 0.05 <= found.interval.high
    assert 0.91 <= hits / 300 <= 0.99


def test_the_noise_of_timing_widens_what_is_sought_and_nothing_else() -> None:
    pair = [
        replace(contender("mine", "given", 0.7, 1), cycle_s=1.0e-3),
        replace(contender("new", "found", 0.7, 2), cycle_s=0.9e-3),
    ]
    exact = judge(pair, 0.95)
    assert (exact.best, exact.verdict) == ("new", "found")
    noisy = judge(pair, 0.95, LogSpread(0.2, 10))
    assert (noisy.best, noisy.leader, noisy.verdict) == ("mine", "new", "tie")
    one, other = finalist(exact), finalist(noisy)
    assert other.acceptance_length == one.acceptance_length
    assert other.against_given == one.against_given
    assert "tokens/s" in exact.sentence
    widths = []
    for found in (one, other):
        widths.append(found.gain.interval.high - found.gain.interval.low)
    assert widths[1] > 3 * widths[0]
