"""Draft-free speculation: n-gram drafting as the two flavours have it, and how they are told.

The methods draft from the text itself, so they need no file. Mainline's are in
``common/speculative.cpp``, ``common/ngram-map.cpp``, ``ngram-mod.cpp`` and ``ngram-cache.cpp`` at
0c1e570; ik's in the files of the same names and ``common/suffix-tree.cpp`` at 8337e4cd.
:mod:`cook.scoring.ngram` simulates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType

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
        said = " ".join(
            f"{f.name}={value:g}"
            for f in fields(self)[1:]
            if (value := getattr(self, f.name)) is not None
        )
        return f"{self.type} {said}".rstrip()

    def of(self, flavour: Flavour) -> NgramSettings:
        """With the flavour's own number wherever none is said; InputError for one it has not."""
        own = DEFAULTS[flavour].get(self.type)
        if own is None:
            raise InputError(
                f"{flavour} has no {self.type}", hint=f"it has {', '.join(DEFAULTS[flavour])}"
            )
        said = {f.name: getattr(self, f.name) for f in fields(self)[1:]}
        said = {name: value for name, value in said.items() if value is not None}
        deaf = [name for name in said if getattr(own, name) is None]
        if deaf:
            used = ", ".join(own.numbers())
            raise InputError(
                f"{self.type} of {flavour} does not use {', '.join(deaf)}",
                hint=f"it uses {used}" if used else "leave it out",
            )
        found = replace(own, **said)
        if (found.n_min or 0) > found.longest:
            raise InputError(
                f"{self.type}: n_min {found.n_min} is above its longest draft, {found.longest}",
                hint="no draft would be long enough",
            )
        return found

    def numbers(self) -> tuple[str, ...]:
        """Names of the numbers that are said."""
        return tuple(f.name for f in fields(self)[1:] if getattr(self, f.name) is not None)

    @property
    def longest(self) -> int:
        """Tokens of the longest draft; of settings with all their numbers."""
        most = {NgramType.CACHE: CACHE_DRAFT}.get(self.type, self.size_m)
        return min(n for n in (most, self.n_max) if n is not None)


CACHE_DRAFT = 8
"""Tokens of ngram-cache's longest draft: a constant of both engines."""


def _table(*settings: NgramSettings) -> Mapping[NgramType, NgramSettings]:
    return MappingProxyType({one.type: one for one in settings})


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
    """(flag, number) of llama.cpp for settings with all their numbers, beside ``--spec-type``."""
    if settings.type is NgramType.MOD:
        names = {"size_n": "n-match", "n_min": "n-min", "n_max": "n-max"}
    else:
        names = {"size_n": "size-n", "size_m": "size-m", "min_hits": "min-hits"}
    return tuple(
        (f"--spec-{settings.type}-{flag}", int(getattr(settings, name)))
        for name, flag in names.items()
        if getattr(settings, name) is not None
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
    keys = ",".join(
        f"{key}={value:g}"
        for name, key in _IK_KEYS.items()
        if (value := getattr(settings, name)) is not None
    )
    return f"{settings.type}:{keys}"
