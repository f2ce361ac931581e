"""Prompts dealt into the shares that replay needs: halves, and the rounds of a race."""

from __future__ import annotations

from dataclasses import replace

from cook.errors import InputError
from cook.prompts.prompt_set import Prompt, PromptSet, select


def in_halves(prompts: PromptSet) -> PromptSet:
    """``prompts`` as they are where their halves balance; else dealt anew, one by one.

    A small ``limit`` may take every prompt from one half. InputError for a single prompt.
    """
    if len(prompts.prompts) < 2:
        raise InputError(
            "replay needs two prompts at least: one half to choose on, one to report",
            hint="give more prompts, or `score: {method: live}`",
        )
    picks = sum(p.half == "pick" for p in prompts.prompts)
    if abs(2 * picks - len(prompts.prompts)) <= len(prompts.categories):
        both = {p.half for p in prompts.prompts}
        if len(both) == 2:
            return prompts
    dealt = tuple(
        replace(p, half="report" if index % 2 else "pick")
        for index, p in enumerate(prompts.prompts)
    )
    return replace(prompts, prompts=dealt)


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
