"""The raw flags of a recipe (``extra``), held against the reviewed table of the engines' options.

Once while the recipe is read, against both engines, so that a recipe that could do harm is
refused before anything is fetched for it; and again by :mod:`cook.recipe.lint`, against the
engine at hand and the help of the very tool that would get the flags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cook.documents.tree import Locations
from cook.engines.options import (
    OVERRIDE_KV,
    REACHES_BOTH,
    UNSAFE_FLAG,
    Reading,
    normal,
    other_machines,
    read_flags,
)
from cook.errors import Problem
from cook.formats.quant_types import Flavour

if TYPE_CHECKING:
    from cook.engines.facts import Facts
    from cook.recipe.schema import Recipe

PLACES: Mapping[tuple[str, ...], str] = {
    ("imatrix", "args"): "imatrix",
    ("evaluate", "args"): "perplexity",
    ("score", "target", "args"): "server",
    ("score", "baseline", "args"): "server",
    ("score", "draft", "args"): "server",
}
"""Where a recipe has model arguments, and the tool that their raw flags reach."""


def written_flag_problems(
    data: Mapping[str, object], locations: Locations, *, unsafe: bool
) -> Iterator[Problem]:
    """Faults in the raw flags of a recipe as it is written, whether the rest of it is valid."""
    for place in PLACES:
        words = _at(data, (*place, "extra"))
        if isinstance(words, (tuple, list)) and all(isinstance(word, str) for word in words):
            reading = read_flags([str(word) for word in words])
            yield from _problems(reading, words, locations, place, unsafe=unsafe)
        servers = _at(data, (*place, "rpc"))
        listed = servers if isinstance(servers, (tuple, list)) else (servers,)
        for server in other_machines(s for s in listed if isinstance(s, str) and not unsafe):
            yield locations.at(*place, "rpc").problem(
                f"`{server}` is another machine, which would get the weights and the prompts",
                hint=f"if it is yours, say so on the command line: {UNSAFE_FLAG}",
            )


def flag_problems(
    recipe: Recipe,
    locations: Locations,
    flavour: str,
    facts: Facts | None,
    engine_name: str,
    *,
    unsafe: bool,
) -> Iterator[Problem]:
    """Faults in the raw flags of ``recipe`` for the engine at hand, and what is let through."""
    for place, tool in PLACES.items():
        words = _at(recipe, (*place, "extra"))
        if not isinstance(words, tuple) or not words:
            continue
        offered: Collection[str] | None = None
        if facts is not None:
            offered = facts.flags.get(tool) or facts.flags.get("server", ())
        reading = read_flags(words, [Flavour(flavour)], offered, f"llama-{tool} of {engine_name}")
        yield from _problems(reading, words, locations, place, unsafe=unsafe)
        if unsafe and (passed := [r for r in reading.refusals if not r.ours]):
            at = locations.at(*place, "extra", passed[0].index)
            flags = ", ".join(f"`{words[r.index]}`" for r in passed)
            yield at.problem(f"{flags}: let through by {UNSAFE_FLAG}", severity="warning")
            for index in (r.index for r in passed if normal(words[r.index]) in OVERRIDE_KV):
                at = locations.at(*place, "extra", index)
                yield at.problem(f"`{words[index]}`: {REACHES_BOTH}", severity="warning")


def _problems(
    reading: Reading,
    words: Sequence[object],
    locations: Locations,
    place: tuple[str, ...],
    *,
    unsafe: bool,
) -> Iterator[Problem]:
    for refusal in reading.refusals:
        if refusal.ours or not unsafe:
            at = locations.at(*place, "extra", refusal.index)
            kind = "prerequisite" if refusal.missing else "recipe"
            yield at.problem(refusal.message, hint=refusal.hint, kind=kind)


def _at(part: object, keys: tuple[str, ...]) -> object:
    for key in keys:
        part = part.get(key) if isinstance(part, Mapping) else getattr(part, key, None)
    return part
