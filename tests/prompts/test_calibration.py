"""Prompts kept apart for calibration: by their id, and never in both parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.errors import InputError
from cook.prompts.calibration import calibrates, require_apart, split_for_calibration
from cook.prompts.prompt_set import Prompt, PromptSet, load_prompts, subset


def prompt_set(ids: list[str]) -> PromptSet:
    prompts = tuple(Prompt(i, "c", f"text of {i}", "pick") for i in ids)
    return subset(PromptSet("mine", prompts, ""), prompts)


@given(st.sets(st.text("abc-019", min_size=1, max_size=8), min_size=30, max_size=60))
def test_other_prompts_move_none(ids: set[str]) -> None:
    every = prompt_set(sorted(ids))
    split = split_for_calibration(Path("mine.jsonl"), every)
    kept = {p.id for p in split.calibration.prompts}
    assert kept | {p.id for p in split.scoring.prompts} == ids
    fewer = sorted(ids)[::2]
    assert {i for i in fewer if calibrates(i)} == kept & set(fewer)


def test_about_one_in_three() -> None:
    share = sum(calibrates(f"prompt-{i}") for i in range(3000)) / 3000
    assert 0.3 < share < 0.37


def test_the_default_set_leaves_every_category_on_both_sides() -> None:
    every = load_prompts("default")
    split = split_for_calibration("default", every)
    assert set(split.calibration.categories) == set(every.categories)
    assert set(split.scoring.categories) == set(every.categories)
    assert {p.half for p in split.scoring.prompts} == {"pick", "report"}


def test_the_demo_has_prompts_of_its_own_for_it() -> None:
    every = load_prompts("demo")
    split = split_for_calibration("demo", every)
    assert split.scoring == every
    assert split.calibration == load_prompts("demo-calibration")


def test_nothing_left_is_an_error() -> None:
    kept = [f"p{i}" for i in range(40) if calibrates(f"p{i}")]
    rest = [f"p{i}" for i in range(40) if not calibrates(f"p{i}")]
    with pytest.raises(InputError, match="none is left for scoring"):
        split_for_calibration(Path("m"), prompt_set(kept))
    with pytest.raises(InputError, match="none is left for calibration"):
        split_for_calibration(Path("m"), prompt_set(rest))


def test_a_text_in_both_is_an_error() -> None:
    one = prompt_set(["a", "b"])
    twin = PromptSet("twin", (Prompt("z", "c", " text of b\n", "pick"),), "")
    with pytest.raises(InputError, match=r"prompt z is also calibrated on \(as b\)"):
        require_apart(one, twin)
