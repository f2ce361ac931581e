"""Prompts of a replay: halves that balance."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cook.errors import InputError
from cook.prompts.prompt_set import (
    Half,
    Prompt,
    PromptSet,
    balance_halves,
    load_prompts,
    select,
    subset,
)


def prompt_set(*halves: tuple[str, Half]) -> PromptSet:
    """One prompt for each (category, half)."""
    found = [
        Prompt(f"p{i}", category, f"text {i}", half) for i, (category, half) in enumerate(halves)
    ]
    return subset(PromptSet("test", (), ""), found)


HALF: st.SearchStrategy[Half] = st.sampled_from(["pick", "report"])
SETS = st.lists(st.tuples(st.sampled_from("abcd"), HALF), min_size=2, max_size=60).map(
    lambda halves: prompt_set(*halves)
)


@given(SETS)
@settings(max_examples=100, deadline=None)
def test_halves_balance_and_nothing_else_changes(prompts: PromptSet) -> None:
    dealt = balance_halves(prompts)
    assert [(p.id, p.category, p.text) for p in dealt.prompts] == [
        (p.id, p.category, p.text) for p in prompts.prompts
    ]
    picks = sum(p.half == "pick" for p in dealt.prompts)
    assert 0 < picks < len(dealt.prompts)
    assert abs(2 * picks - len(dealt.prompts)) <= 1
    assert balance_halves(dealt) == dealt


def test_every_categorys_odd_prompt_does_not_go_to_choosing() -> None:
    """Ten categories, 12 prompts: 10 were chosen on and 2 reported on."""
    wanted = select(load_prompts("default"), 12)
    assert Counter(p.half for p in wanted.prompts)["pick"] > 6
    assert Counter(p.half for p in balance_halves(wanted).prompts) == {"pick": 6, "report": 6}
    demo = balance_halves(load_prompts("demo"))
    halves = Counter(p.half for p in demo.prompts)
    assert abs(halves["pick"] - halves["report"]) <= 1


def test_balanced_halves_stay_as_they_are() -> None:
    prompts = prompt_set(("a", "pick"), ("a", "report"), ("b", "report"), ("b", "pick"))
    assert balance_halves(prompts) is prompts


def test_one_prompt_cannot_be_both_chosen_and_reported_on() -> None:
    with pytest.raises(InputError, match="two prompts at least"):
        balance_halves(prompt_set(("a", "pick")))
