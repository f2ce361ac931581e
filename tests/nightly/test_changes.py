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
    counted = {GatedFigure.ACCEPTANCE, GatedFigure.REPLAYED}
    assert {change.figure for change in found} == counted
    assert {refusal.figure for refusal in refused} == set(GatedFigure) - counted


def test_a_few_prompts_say_nothing(night: Night) -> None:
    names = tuple((f"new {i}", "a") for i in range(len(night.prompts)))
    kept = (*night.prompts[: FEWEST_PROMPTS - 1], *names[FEWEST_PROMPTS - 1 :])
    found, refused = changes(replace(night, prompts=kept), night)
    assert not found
    assert [r.candidate for r in refused] == ["Q4", "Q8", "Q16", "every candidate"]
    assert all(f"{FEWEST_PROMPTS} are needed" in r.reason for r in refused)


def test_a_draft_that_left_the_race_is_compared_where_both_nights_replayed_it(
    night: Night,
) -> None:
    first, *rest = night.replays
    half = len(night.prompts) // 2
    gone = (None,) * (len(night.prompts) - half)
    short = replace(
        first, drafted=(*first.drafted[:half], *gone), accepted=(*first.accepted[:half], *gone)
    )
    found, _ = changes(replace(night, replays=(short, *rest)), night)
    replayed = {c.candidate: c for c in found if c.figure is GatedFigure.REPLAYED}
    assert {name: c.prompts for name, c in replayed.items()} == {"Q4": half, "Q8": 112, "Q16": 112}
    # Then and now are both of those prompts, so nothing has changed.
    assert all(c.identical for c in replayed.values())


def test_replays_of_another_length_are_not_compared(night: Night) -> None:
    first, *rest = night.replays
    other = replace(night, replays=(replace(first, n_max=first.n_max + 1), *rest))
    _, (refusal,) = changes(other, night)
    assert (refusal.figure, refusal.candidate) == (GatedFigure.REPLAYED, first.draft)
    assert refusal.reason == "replayed at n_max=4 then, 5 now"
