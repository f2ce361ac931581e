"""What two nights may be compared by; how sure it is stands in test_gates.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cook.nightly.changes import FEWEST_PROMPTS, GatedFigure, changes, mismatch
from cook.nightly.night import Night
from tests.nightly.nights import WORLDS, Series


@pytest.fixture(scope="module")
def night() -> Night:
    return Series(WORLDS["CPU"], seed=3).measure()


def test_a_night_against_itself_has_not_changed(night: Night) -> None:
    found, refused = changes(night, night)
    assert not refused
    assert {change.change for change in found} == {0.0}
    assert {change.figure for change in found} == set(GatedFigure)


@pytest.mark.parametrize("name", ["prompts_sha256", "max_tokens", "temperature", "machine"])
def test_nights_that_measured_something_else_are_not_compared(night: Night, name: str) -> None:
    other = replace(night, **{name: "other"})  # type: ignore[arg-type]
    assert mismatch(other, night) is not None
    assert mismatch(night, night) is None
    found, (refusal,) = changes(other, night)
    assert not found
    assert "differs" in refusal.reason


def test_disturbed_timings_are_not_judged_and_counts_are(night: Night) -> None:
    found, refused = changes(replace(night, disturbed=2), night)
    assert {change.figure for change in found} == {GatedFigure.ACCEPTANCE}
    assert {refusal.figure for refusal in refused} == set(GatedFigure) - {GatedFigure.ACCEPTANCE}


def test_a_few_prompts_say_nothing(night: Night) -> None:
    names = tuple((f"new {i}", "a") for i in range(len(night.prompts)))
    kept = (*night.prompts[: FEWEST_PROMPTS - 1], *names[FEWEST_PROMPTS - 1 :])
    found, (refusal,) = changes(replace(night, prompts=kept), night)
    assert not found
    assert f"{FEWEST_PROMPTS} are needed" in refusal.reason
