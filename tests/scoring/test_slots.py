"""Several slots: what is decoded together, and what a loop over shared batches comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve
from cook.scoring.simulate import Simulation, plain_steps
from cook.scoring.slots import (
    SimulatedReply,
    SlotCurves,
    SlotPrices,
    _physical,
    _Slot,
    require_room,
    serve,
)

DEPTHS = (1, 1000)


def curves(
    of: float = 1.0, sequences: Sequence[int] = (1, 2, 4), prompt_s: float = 0.0
) -> SlotCurves:
    """A batch of s x w tokens takes ``of`` seconds and a hundredth of it for each token."""
    widths = (1, 5, 9)
    rows = {s: tuple(of * (1 + s * w / 100) for w in widths) for s in sequences}
    batches = {s: BatchCurve(DEPTHS, widths, (row,) * len(DEPTHS)) for s, row in rows.items()}
    prompts = ((1e-9 + prompt_s, 2e-9 + 100 * prompt_s),)
    return SlotCurves(batches, BatchCurve((0,), (1, 100), prompts))


def drafted(accepted: Sequence[int], n_max: int = 4, prompt: int = 10) -> SimulatedReply:
    each = np.asarray(accepted, np.int64)
    start = 1 + np.concatenate([[0], np.cumsum(each + 1)[:-1]])
    full = np.full(len(each), n_max, np.int64)
    run = Simulation(start, full, each, full, np.zeros_like(full))
    return SimulatedReply(run, prompt, 1 + int((each + 1).sum()))


def split(widths: Sequence[tuple[int, int]]) -> list[tuple[list[int], int, int]]:
    batch = [(_Slot(number, drafted([1])), tokens) for number, tokens in widths]
    return [
        ([slot.number for slot in group], width, done) for group, width, done in _physical(batch)
    ]


def test_equal_drafts_of_neighbours_are_one_batch_and_others_several() -> None:
    assert split([(0, 5), (1, 5), (2, 5), (3, 5)]) == [([0, 1, 2, 3], 5, 0)]
    assert split([(0, 5), (1, 2)]) == [([0, 1], 2, 0), ([0], 3, 2)]
    assert split([(0, 3), (2, 3), (3, 3)]) == [([0], 3, 0), ([2, 3], 3, 0)]
    # a prompt stands behind all that generate, and is taken along where its number follows
    assert split([(0, 5), (1, 5), (3, 5), (2, 60)]) == [
        ([0, 1, 2], 5, 0),
        ([3], 5, 0),
        ([2], 55, 5),
    ]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_every_token_is_decoded_once(tokens: list[int]) -> None:
    done = dict.fromkeys(range(len(tokens)), 0)
    for group, width, _ in split(list(enumerate(tokens))):
        assert group == list(range(group[0], group[-1] + 1))
        for number in group:
            done[number] += width
    assert list(done.values()) == tokens


def test_one_slot_is_one_request_after_the_other() -> None:
    replies = [drafted([4, 0, 2]), drafted([1, 1])]
    prices = SlotPrices(curves(), curves(0.1), 0.01, 0.001)
    served = serve(replies, 1, prices)
    steps = 5
    a_step = 1.05 + 4 * 0.1 * 1.01 + 4 * 0.001 + 0.1 * 1.05
    sampled = sum(int((r.run.accepted + 1).sum()) for r in replies) * 0.01
    assert served.decode_s == pytest.approx(steps * a_step + sampled)
    assert served.seconds == pytest.approx(served.decode_s, rel=1e-6)
    assert served.steps == steps + 2
    assert served.tokens == 9 + 4
    slow = serve(replies, 1, replace(prices, factor=1.1))
    assert slow.decode_s == pytest.approx(1.1 * served.decode_s)


def test_slots_share_their_batches() -> None:
    replies = [SimulatedReply(plain_steps(101), 10, 101)] * 4
    prices = SlotPrices(curves())
    alone, all_at_once = serve(replies, 1, prices), serve(replies, 4, prices)
    assert alone.seconds == pytest.approx(400 * 1.01, rel=1e-6)
    assert all_at_once.seconds == pytest.approx(100 * 1.04, rel=1e-6)
    assert all_at_once.tokens_per_s_each == pytest.approx(1 / 1.04, rel=1e-6)


def test_a_slot_that_drafts_more_goes_on_alone() -> None:
    replies = [drafted([0], n_max) for n_max in (4, 1)]
    served = serve(replies, 2, SlotPrices(curves(1e-9), curves()))
    drafts, verified = 1.02 + 3 * 1.01, 1.04 + 1.03
    assert served.seconds == pytest.approx(drafts + verified, rel=1e-6)


def test_a_prompt_delays_those_that_generate() -> None:
    short, prices = SimulatedReply(plain_steps(11), 10, 11), SlotPrices(curves(prompt_s=1.0))
    others = (SimulatedReply(plain_steps(3), prompt, 3) for prompt in (90, 10))
    late, early = (serve([short, other], 2, prices).seconds for other in others)
    assert late - early > 70


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), min_size=1, max_size=8))
def test_every_reply_is_served_whatever_the_slots(replies: list[list[int]]) -> None:
    requests = [drafted(accepted) for accepted in replies]
    prices = SlotPrices(curves(), curves(0.05))
    served = [serve(requests, slots, prices) for slots in (1, 2, 4)]
    assert {one.tokens for one in served} == {sum(r.reply - 1 for r in requests)}
    assert served[2].steps <= served[1].steps <= served[0].steps
    assert all(one.seconds > 0 for one in served)


def test_beyond_what_was_timed_nothing_is_priced() -> None:
    with pytest.raises(InputError, match="5 slots are to be priced, and 4 were timed"):
        curves().at(5, 1, 10)
    assert curves().at(3, 5, 10) == pytest.approx(1.15), "between two and four a line"

    require_room(4, 7, 32)
    with pytest.raises(InputError, match="verify 36 at once, and a batch holds 32"):
        require_room(4, 8, 32)
    with pytest.raises(InputError, match="no requests"):
        serve([], 2, SlotPrices(curves()))
