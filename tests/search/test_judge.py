"""The verdict: better, a tie, or the recipe's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cook.record.search_record import Family
from cook.scoring.compare import FEWEST_PROMPTS
from cook.scoring.noise import LogSpread
from cook.search.evaluate import Replies
from cook.search.findings import sentence
from cook.search.judge import MARGIN, Contender, effect, judge

IDS = tuple(f"p{i}" for i in range(20))


def contender(name: str, family: Family, rate: float, seed: int, noise: float = 0.01) -> Contender:
    rng = np.random.default_rng(seed)
    tokens = np.full(len(IDS), 200.0)
    accepted = np.round(tokens * np.clip(rate + noise * rng.normal(size=len(IDS)), 0, 0.95))
    flat = np.zeros(len(IDS))
    replies = Replies(IDS, ("prose",) * len(IDS), tokens, tokens * 1.5, accepted, flat, flat)
    return Contender(name, family, {"output.weight": "q8_0"}, 1000, replies)


def test_a_better_mix_is_found() -> None:
    judged = judge([contender("mine", "given", 0.7, 1), contender("new", "found", 0.8, 2)], 0.95)
    assert (judged.best, judged.given, judged.verdict) == ("new", "mine", "found")
    gain = judged.against_given["new"]
    assert gain.interval is not None
    assert 0 < gain.interval.low < gain.value < gain.interval.high
    assert "new is better" in sentence(judged)


def test_the_recipe_stays_where_what_was_found_is_worse() -> None:
    judged = judge([contender("mine", "given", 0.8, 1), contender("new", "found", 0.7, 2)], 0.95)
    assert (judged.best, judged.verdict) == ("mine", "given")
    assert "mine stays" in sentence(judged)


def test_equals_tie_and_the_recipe_stays() -> None:
    mine = contender("mine", "given", 0.8, 1)
    same = Contender("new", "found", mine.types, 1000, mine.replies)
    judged = judge([mine, same], 0.95)
    assert (judged.best, judged.leader, judged.verdict) == ("mine", "mine", "tie")
    assert "nothing that was found has more" in sentence(judged)


def test_a_tie_that_may_be_worse_by_more_than_the_margin_leaves_the_recipe() -> None:
    pair = [contender("mine", "given", 0.70, 1, 0.1), contender("new", "found", 0.74, 5, 0.1)]
    judged = judge(pair, 0.95)
    assert judged.gain["new"].value > 0
    assert (judged.best, judged.leader, judged.verdict) == ("mine", "new", "tie")
    assert "tie: mine stays: new has +" in sentence(judged)


def test_a_tie_that_is_surely_no_worse_than_the_margin_is_returned() -> None:
    pair = [contender("mine", "given", 0.7, 1, 0.002), contender("new", "found", 0.7005, 7, 0.002)]
    judged = judge(pair, 0.95)
    interval = judged.gain["new"].interval
    assert interval is not None
    assert -MARGIN * judged.value["mine"] <= interval.low < 0 < judged.gain["new"].value
    assert (judged.best, judged.verdict) == ("new", "tie")
    assert "tie: new has" in sentence(judged)


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
    assert not judged.against_given


def test_an_effect_is_the_difference_of_two_ratios() -> None:
    one, other = contender("a", "given", 0.7, 1).replies, contender("b", "found", 0.8, 2).replies
    found = effect(other, one, ("tokens", "cycles"), 0.95)
    assert found.value == pytest.approx(other.acceptance_length - one.acceptance_length)


def test_the_noise_of_timing_widens_what_is_sought_and_nothing_else() -> None:
    pair = [
        replace(contender("mine", "given", 0.7, 1), cycle=1.0e-3),
        replace(contender("new", "found", 0.7, 2), cycle=0.9e-3),
    ]
    exact = judge(pair, 0.95)
    assert (exact.best, exact.verdict) == ("new", "found")
    noisy = judge(pair, 0.95, LogSpread(0.2, 10))
    assert (noisy.best, noisy.leader, noisy.verdict) == ("mine", "new", "tie")
    assert noisy.lengths == exact.lengths
    assert noisy.against_given == exact.against_given
    narrow, wide = exact.gain["new"].interval, noisy.gain["new"].interval
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
