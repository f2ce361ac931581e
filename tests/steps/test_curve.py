"""Which widths and prompt lengths are timed, and what becomes of several passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.steps.curve import PREFILL_TOKENS, CurveOutcome, _prompt_sizes, combined, widths_for


@given(st.sets(st.integers(1, 32), min_size=1))
def test_every_full_verification_is_timed_as_it_is(lengths: set[int]) -> None:
    widths = widths_for(lengths)
    assert set(widths) >= {1, *(n + 1 for n in lengths)}
    assert list(widths) == sorted(set(widths))
    assert max(widths) == max(lengths) + 1


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_prompts_are_timed_at_lengths_that_occur(lengths: list[int]) -> None:
    sizes = _prompt_sizes(lengths)
    assert list(sizes) == sorted(set(sizes))
    assert set(sizes) <= {1, PREFILL_TOKENS, *lengths}
    assert min(PREFILL_TOKENS, min(lengths)) in sizes
    assert max(sizes) <= PREFILL_TOKENS


def outcome(second: float, prompt: float) -> CurveOutcome:
    return CurveOutcome((10,), (1, 2), ((second, 2 * second),), 0.1, (1, 8), (prompt, 4.0), None)


def test_passes_are_combined_by_medians() -> None:
    found = combined([outcome(1.0, 0.5), outcome(9.0, 0.7), outcome(2.0, 0.6)])
    assert found.batches.at([1, 2], 10) == pytest.approx([2.0, 4.0])
    assert found.prompts.at([1, 8], 0) == pytest.approx([0.6, 4.0])
