"""Prompts dealt into the shares that replay needs: halves, and the rounds of a race."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cook.errors import InputError
from cook.prompts.prompt_set import Half, Prompt, PromptSet, select


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


def race_shares(prompts: PromptSet) -> tuple[tuple[str, ...], ...]:
    """Prompt ids of each round: the half to choose on in growing shares, then the other half.

    Every share has its part of every category, whatever their order in the set.
    """
    picking = replace(prompts, prompts=_half(prompts, "pick"))
    count = len(picking.prompts)
    rounds: list[tuple[str, ...]] = []
    dealt: set[str] = set()
    for most in (-(-count // 4), -(-count // 2), count):
        share = tuple(p.id for p in select(picking, most).prompts if p.id not in dealt)
        rounds.append(share)
        dealt |= set(share)
    rounds.append(tuple(p.id for p in _half(prompts, "report")))
    return tuple(share for share in rounds if share)


def _half(prompts: PromptSet, half: str) -> tuple[Prompt, ...]:
    return tuple(p for p in prompts.prompts if p.half == half)
