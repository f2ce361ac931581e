"""Prompts dealt into two halves: one to choose on, one to report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cook.errors import InputError
from cook.prompts.prompt_set import Half, PromptSet


def in_halves(prompts: PromptSet) -> PromptSet:
    """``prompts`` with halves that differ by one prompt at most, over all and in each category
    as nearly as can be.

    Every category's odd prompt, or a small ``limit``, may leave one half larger: then the last
    prompts of the categories that have most to spare go to the other. InputError for a single
    prompt.
    """
    if len(prompts.prompts) < 2:
        raise InputError(
            "replay needs two prompts at least: one half to choose on, one to report",
            hint="give more prompts, or `score: {method: live}`",
        )
    dealt = list(prompts.prompts)
    surplus = Counter(dict.fromkeys(prompts.categories, 0))
    for prompt in dealt:
        surplus[prompt.category] += 1 if prompt.half == "pick" else -1
    sign = 1 if surplus.total() > 0 else -1
    halves: tuple[Half, Half] = ("pick", "report") if sign > 0 else ("report", "pick")
    larger, smaller = halves
    while abs(surplus.total()) > 1:
        category = max(surplus, key=lambda name: sign * surplus[name])
        moved = max(i for i, p in enumerate(dealt) if p.category == category and p.half == larger)
        dealt[moved] = replace(dealt[moved], half=smaller)
        surplus[category] -= 2 * sign
    changed = tuple(dealt)
    return prompts if changed == prompts.prompts else replace(prompts, prompts=changed)
