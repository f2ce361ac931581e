"""Drafting during verification: known answers, and what it can never do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.base import DraftSettings
from cook.errors import InputError
from cook.scoring.batch_curve import BatchCurve, Timings
from cook.scoring.parallel import dsi, pearl
from cook.scoring.simulate import Positions, Profile
from tests.scoring.priced import predict

TARGET, DRAFT = 10e-3, 1e-3


def times(draft_s: float = DRAFT, slope: float = 0.0) -> Timings:
    widths = (1, 65)
    seconds = (TARGET, TARGET + 64 * slope)
    return Timings(
        verify=BatchCurve((0,), widths, (seconds,), typed=True),
        draft=BatchCurve((0,), (1,), ((draft_s,),), typed=True),
    )


def reply(match: list[bool]) -> Positions:
    return Positions(20, len(match), np.array(match))


def test_a_draft_that_is_always_right() -> None:
    """PEARL with blocks of 10 verifies ten tokens a cycle; DSI goes at the draft's speed."""
    text = reply([True] * 101)
    found = pearl([text], [1.0], [10], times())
    # One pre-verify cycle, one for the other nine tokens, then nine for ten each.
    assert 100 / found.decode_tokens_per_s == pytest.approx(TARGET * (1 + 1 + 9))
    many = dsi([text], [1.0], times())
    assert 100 / many.decode_tokens_per_s == pytest.approx(99 * DRAFT + TARGET)
    assert many.servers == 10


def test_a_draft_that_is_never_right_costs_nothing() -> None:
    text = reply([False] * 51)
    plain = 1 / TARGET
    assert dsi([text], [1.0], times()).decode_tokens_per_s == pytest.approx(plain)
    # A block that takes no longer to write than one token to verify.
    assert pearl([text], [1.0], [4, 10], times()).decode_tokens_per_s == pytest.approx(plain)


def test_a_block_of_one_token_is_written_alone() -> None:
    text = reply([True] * 11)
    assert 10 / pearl([text], [1.0], [1], times()).decode_tokens_per_s == pytest.approx(10 * TARGET)


def test_post_verify_ends_at_the_first_wrong_token() -> None:
    """Right, right, right, wrong: pre-verify, then two of the block's other three."""
    text = reply([False, True, True, True, False])
    found = pearl([text], [1.0], [4], times(slope=1e-3))
    assert 4 / found.decode_tokens_per_s == pytest.approx(TARGET + (TARGET + 2e-3))


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.floats(0.1, 2.0))
def test_dsi_is_never_slower_than_no_draft_nor_than_drafting_in_turns(
    match: list[bool], draft: float
) -> None:
    text, prices = reply(match), times(draft * TARGET)
    speed = dsi([text], [1.0], prices).decode_tokens_per_s
    assert speed >= (1 - 1e-9) / TARGET
    plain = predict([text], DraftSettings(3), prices, Profile.IK_2026_08)
    assert speed >= (1 - 1e-9) * (plain.figures.decode_speed or 0.0)


def test_without_the_draft_s_times_there_is_no_answer() -> None:
    text = reply([True, True])
    with pytest.raises(InputError, match="draft's times"):
        dsi([text], [1.0], times().without_draft())
