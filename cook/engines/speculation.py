"""What speculates in a server: which kinds a build has, their settings, and what each one counted.

Both engines can also draft from n-grams of the text, without a model or a file. Mainline's methods
are in ``common/speculative.cpp``, ``common/ngram-map.cpp``, ``ngram-mod.cpp`` and
``ngram-cache.cpp`` at 0c1e570; ik's in the files of the same names and ``common/suffix-tree.cpp``
at 8337e4cd. :mod:`cook.scoring.ngram` simulates them.

No draft means no speculation of any kind, and a draft means that draft alone. But a build may draft
by n-grams by default (llama.cpp #28391: ``--spec-type`` only adds, ``--no-spec-type`` takes away).
So a server is held against its own words: its slots, the kinds that its answers name, and the
counters of every kind in its log (docs/internals/engines.md#hidden-speculation).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from cook.errors import InputError
from cook.formats.heads import HeadKind
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


NONE = "none"
UNNAMED = "speculation of an unnamed kind"
"""Of a server that only says that it speculates, as ik does until it counts."""
NGRAMS = tuple(map(str, DEFAULTS[Flavour.LLAMA_CPP]))
"""Kinds without a model of mainline, for a build whose help does not list its kinds."""
BY_DRAFT: Mapping[str, str] = {Flavour.LLAMA_CPP: "draft-simple", Flavour.IK_LLAMA_CPP: "draft"}
"""What a flavour calls speculation by a draft model of its own."""
BY_HEAD: Mapping[str, Mapping[HeadKind, str]] = {
    Flavour.LLAMA_CPP: {
        HeadKind.MTP: "draft-mtp",
        HeadKind.ASSISTANT: "draft-mtp",
        HeadKind.EAGLE3: "draft-eagle3",
        HeadKind.DFLASH: "draft-dflash",
        HeadKind.DSPARK: "draft-dspark",
    },
    Flavour.IK_LLAMA_CPP: {
        HeadKind.MTP: "mtp",
        HeadKind.ASSISTANT: "mtp",
        HeadKind.DFLASH: "dflash",
        HeadKind.DSPARK: "dspark",
    },
}
"""The same by a head of each kind, as far as the flavour has it."""

TOTALS = re.compile(
    r"statistics {1,20}(?P<name>[\w-]{1,40}): #calls\(b,g,a\) = {0,8}\d{1,12} {1,8}\d{1,12} {1,8}"
    r"\d{1,12}, #gen drafts = {0,8}(?P<drafts>\d{1,12}), #acc drafts = {0,8}\d{1,12},"
    r" #gen tokens = {0,8}(?P<drafted>\d{1,12}), #acc tokens = {0,8}(?P<accepted>\d{1,12})"
)
"""What one kind has counted since its server started; both engines write it after a request."""
_ADDED = re.compile(r"adding speculative implementation '(?P<name>[\w-]{1,40})'")
_STARTED = "speculative decoding context initialized"
_LISTED = re.compile(r"(?:--spec-type\s+|^\s+types:\s+)(none,\s?[\w, -]{1,400})$", re.MULTILINE)


def speculators_in_help(text: str) -> tuple[str, ...]:
    """The kinds that the help of a server lists for ``--spec-type``, without ``none``."""
    found = _LISTED.search(text)
    names = (name.strip() for name in found[1].split(",")) if found else ()
    return tuple(name for name in names if name and name != NONE)


def speculators_of(types: object) -> tuple[str, ...]:
    """The kinds in ``speculative.types`` of mainline's settings, ``ngram-mod,draft-simple``."""
    if not isinstance(types, str):
        return ()
    names = (name.strip() for name in types[:400].split(","))
    return tuple(name for name in names if re.fullmatch(r"[\w-]{1,40}", name) and name != NONE)


def read_speculators(lines: Iterable[str]) -> dict[str, str]:
    """Every kind that a server's log names, with its last counts, if any, in words.

    Mainline names them at ``-lv 4``, ik once they have counted (docs/internals/engines.md#logs). A
    server that only says that it speculates has one without a name.
    """
    found: dict[str, str] = {}
    started = False
    for line in lines:
        if match := TOTALS.search(line) or _ADDED.search(line):
            name = match["name"].replace("_", "-")  # as `--spec-type` spells it; ik: ngram_simple
            if match.re is TOTALS:
                accepted = f"{match['accepted']} of {match['drafted']} tokens accepted"
                found[name] = f"{name} ({accepted})"
            else:
                found.setdefault(name, name)
        started = started or _STARTED in line
    return found or ({UNNAMED: UNNAMED} if started else {})


def unwanted(names: Iterable[str], asked: Collection[str]) -> tuple[str, ...]:
    """Those of ``names`` that a server ``asked`` for these kinds, or for none, may not have."""
    allowed = (*asked, UNNAMED) if asked else ()
    return tuple(dict.fromkeys(name for name in names if name not in allowed))
