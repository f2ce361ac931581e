"""What speculates in a server: which kinds a build has, and what each one counted.

No draft means no speculation of any kind, and a draft means that draft alone. Both engines can
also draft from n-grams of the text, without a model, and a build may do so by default
(llama.cpp #28391: on by default, ``--spec-type`` only adds, ``--no-spec-type`` takes away).
So a server is held against its own words: its slots, the kinds that its answers name, and the
counters of every kind in its log (docs/internals/engines.md#hidden-speculation).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from cook.engines.ngram_settings import DEFAULTS
from cook.formats.heads import HeadKind
from cook.formats.quant_types import Flavour

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
