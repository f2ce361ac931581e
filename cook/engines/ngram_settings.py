"""Draft-free speculation: n-gram drafting as the two flavours have it, and its command-line words.

The methods draft from the text itself, so they need no file. Mainline's are in
``common/speculative.cpp``, ``common/ngram-map.cpp``, ``ngram-mod.cpp`` and ``ngram-cache.cpp`` at
0c1e570; ik's in the files of the same names and ``common/suffix-tree.cpp`` at 8337e4cd.
:mod:`cook.scoring.ngram` simulates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from cook.errors import InputError
from cook.formats.quant_types import Flavour


class NgramType(StrEnum):
    """What ``--spec-type`` calls them; ``suffix`` is ik's alone."""

    SIMPLE = "ngram-simple"
    MAP_K = "ngram-map-k"
    MAP_K4V = "ngram-map-k4v"
    MOD = "ngram-mod"
    CACHE = "ngram-cache"
    SUFFIX = "suffix"


@dataclass(frozen=True)
class NgramSettings:
    """One draft-free method and its numbers; None where the method, or the engine, has none.

    ``size_n``: tokens that must have occurred before (of ``ngram-mod`` the ``n_match``);
    ``size_m``: tokens drafted after a match; ``min_hits``: times that a key must have been met.
    ``n_max``, ``n_min``: longest draft, and the shortest that is not thrown away; ``p_min``: the
    least that suffix's bar may fall to again; ``min_match``, ``depth``: shortest match, and the
    longest string, of its tree.
    """

    type: NgramType
    size_n: int | None = None
    size_m: int | None = None
    min_hits: int | None = None
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    min_match: int | None = None
    depth: int | None = None

    def __str__(self) -> str:
        return " ".join((self.type, *(f"{name}={n:g}" for name, n in self.numbers.items())))

    def of(self, flavour: Flavour) -> NgramSettings:
        """With the flavour's own number wherever none is given; InputError for one it has not."""
        own = DEFAULTS[flavour].get(self.type)
        if own is None:
            raise InputError(
                f"{flavour} has no {self.type}", hint=f"it has {', '.join(DEFAULTS[flavour])}"
            )
        if unused := [name for name in self.numbers if name not in own.numbers]:
            used = ", ".join(own.numbers)
            raise InputError(
                f"{self.type} of {flavour} does not use {', '.join(unused)}",
                hint=f"it uses {used}" if used else "leave it out",
            )
        found = replace(own, **self.numbers)
        if (found.n_min or 0) > found.longest:
            raise InputError(
                f"{self.type}: n_min {found.n_min} is above its longest draft, {found.longest}",
                hint="no draft would be long enough",
            )
        return found

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers that are given, by name."""
        every = {f.name: getattr(self, f.name) for f in fields(self)[1:]}
        return {name: number for name, number in every.items() if number is not None}

    @property
    def longest(self) -> int:
        """Tokens of the longest draft; of settings with all their numbers."""
        most = {NgramType.CACHE: CACHE_DRAFT}.get(self.type, self.size_m)
        return min(n for n in (most, self.n_max) if n is not None)


CACHE_DRAFT = 8
"""Tokens of ngram-cache's longest draft: a constant of both engines."""


def _table(*settings: NgramSettings) -> Mapping[NgramType, NgramSettings]:
    return {one.type: one for one in settings}


DEFAULTS: Mapping[Flavour, Mapping[NgramType, NgramSettings]] = {
    Flavour.LLAMA_CPP: _table(
        NgramSettings(NgramType.SIMPLE, size_n=12, size_m=48),
        NgramSettings(NgramType.MAP_K, size_n=12, size_m=48),
        NgramSettings(NgramType.MAP_K4V, size_n=12, size_m=48, min_hits=1),
        NgramSettings(NgramType.MOD, size_n=24, n_max=64, n_min=48),
        NgramSettings(NgramType.CACHE),
    ),
    Flavour.IK_LLAMA_CPP: _table(
        NgramSettings(NgramType.SIMPLE, size_n=12, size_m=48, n_max=16, n_min=0),
        NgramSettings(NgramType.MAP_K, size_n=12, size_m=48, n_max=16, n_min=0),
        NgramSettings(NgramType.MAP_K4V, size_n=12, size_m=48, min_hits=1, n_max=16, n_min=0),
        NgramSettings(NgramType.MOD, size_n=12, n_max=16, n_min=0),
        NgramSettings(NgramType.CACHE, n_max=16, n_min=0),
        NgramSettings(NgramType.SUFFIX, n_max=16, n_min=0, p_min=0.75, min_match=5, depth=64),
    ),
}
"""A method's defaults; cook writes every number on the command line."""


def doubts(settings: NgramSettings, flavour: Flavour) -> str | None:
    """What is to be known of settings with all their numbers before time is spent on them.

    docs/internals/scoring.md#draft-free
    """
    match settings.type:
        case NgramType.CACHE:
            return (
                "it reads only what lies beyond the longest text that its server ever saw, so that "
                "it learns from one prompt (llama.cpp #27852)"
            )
        case NgramType.MOD if flavour is Flavour.LLAMA_CPP and settings.n_min:
            return (
                f"it drafts {settings.n_min} tokens or nothing, after {settings.size_n} that came "
                "before: short prompts and replies give it none"
            )
        case NgramType.SUFFIX if (settings.p_min or 0.0) >= HIGHEST_BAR:
            return (
                f"its bar rises to {HIGHEST_BAR:g} where drafts fail, and with p_min "
                f"{settings.p_min:g} never falls again"
            )
    return None


HIGHEST_BAR = 0.5
"""Most that suffix asks of a continuation's probability."""


def mainline_flags(settings: NgramSettings) -> tuple[tuple[str, int], ...]:
    """(flag, number) of llama.cpp for settings with all their numbers, besides ``--spec-type``."""
    if settings.type is NgramType.MOD:
        names = {"size_n": "n-match", "n_min": "n-min", "n_max": "n-max"}
    else:
        names = {"size_n": "size-n", "size_m": "size-m", "min_hits": "min-hits"}
    return tuple(
        (f"--spec-{settings.type}-{flag}", int(settings.numbers[name]))
        for name, flag in names.items()
        if name in settings.numbers
    )


_IK_KEYS = {
    "n_max": "n_max",
    "n_min": "n_min",
    "p_min": "p_min",
    "size_n": "ngram_size_n",
    "size_m": "ngram_size_m",
    "min_hits": "ngram_min_hits",
    "min_match": "suffix_min_match_len",
    "depth": "suffix_max_depth",
}


def ik_stage(settings: NgramSettings) -> str:
    """The value of ik's ``--spec-type`` for settings with all their numbers."""
    numbers = settings.numbers
    keys = (f"{key}={numbers[name]:g}" for name, key in _IK_KEYS.items() if name in numbers)
    return f"{settings.type}:{','.join(keys)}"
