"""Differences in acceptance, prompt by prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.record.measured import PromptFigures
from cook.report.ratios import acceptance_error, acceptance_ratio, speed_ratio, speed_ratios


def prompts(accepted: list[int | None], drafted: int = 100, first: int = 0) -> PromptFigures:
    count = len(accepted)
    return PromptFigures(
        ids=tuple(f"p{first + i}" for i in range(count)),
        categories=tuple("ab"[i % 2] for i in range(count)),
        tokens=(100,) * count,
        decode_ms=(1.0,) * count,
        wall_ms=(1.0,) * count,
        drafted=tuple(drafted if a is not None else None for a in accepted),
        accepted=tuple(accepted),
    )


def test_a_difference_on_every_prompt_is_certain() -> None:
    base = [50 + 5 * (i % 4) for i in range(16)]
    found = acceptance_ratio(prompts([a + 5 for a in base]), prompts([*base]), 0.95)
    assert found is not None
    assert 1 < found.low < 1 + 5 / 57.5 < found.high


def test_a_difference_that_changes_sign_is_not() -> None:
    base = [50] * 16
    mixed = [a + (12 if i % 3 else -20) for i, a in enumerate(base)]
    found = acceptance_ratio(prompts([*mixed]), prompts([*base]), 0.95)
    assert found is not None
    assert found.low < 1 < found.high


def test_only_common_prompts_on_which_both_drafted_count() -> None:
    nine: list[int | None] = [50, 60, 70, 50, 60, 70, 50, 60, 70]
    assert acceptance_ratio(prompts(nine), prompts([*nine, 50]), 0.95) is not None
    assert acceptance_ratio(prompts([None, None, *nine[:7]]), prompts(nine), 0.95) is None
    assert acceptance_ratio(prompts(nine), prompts(nine, first=2), 0.95) is None
    assert acceptance_ratio(prompts(nine), None, 0.95) is None
    assert acceptance_ratio(prompts(nine), prompts([0] * 9), 0.95) is None


def test_below_eight_prompts_there_is_no_interval() -> None:
    """It was given from two on."""
    some: list[int | None] = [50, 60, 70, 50, 60, 70, 50, 60]
    assert acceptance_ratio(prompts(some), prompts(some), 0.95) is not None
    assert acceptance_ratio(prompts(some[:7]), prompts(some[:7]), 0.95) is None


def test_the_error_of_an_acceptance_is_by_prompts() -> None:
    alike = acceptance_error(prompts([50] * 8))
    assert alike == 0
    mixed = acceptance_error(prompts([40, 40, 60, 60] * 4))
    assert mixed == pytest.approx(0.1 * (8 / 7) ** 0.5 / 16**0.5)
    assert acceptance_error(prompts([40, 60] * 8)) == 0, "what differs between categories"
    assert acceptance_error(prompts([50] * 7)) is None
    assert acceptance_error(prompts([50] * 14), "a") is None, "seven prompts of the category"
    assert acceptance_error(prompts([50] * 16), "a") == 0
    assert acceptance_error(None) is None


def test_speeds_are_compared_over_common_prompts() -> None:
    slow = prompts([50] * 9)
    fast = replace(slow, wall_ms=(0.5,) * 9)
    found = speed_ratio(fast, slow, 0.95)
    assert found is not None
    assert found.low == found.high == pytest.approx(2.0)
    assert speed_ratio(fast, prompts([50] * 9, first=2), 0.95) is None
    assert speed_ratios(fast, slow) == {"a": [2.0] * 5, "b": [2.0] * 4}
    assert speed_ratios(fast, None) == {}
