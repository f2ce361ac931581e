"""What is not what it was that night, and so may be why a figure is not: the cause of a change.

Six kinds, each read from what was measured with: the defaults of the engine's server as its help
tells them, the bytes of the engine, of the drafts, of the target, the prompts and how they were
asked, and the machine. A default that moved comes with an engine of other bytes, and is told first:
it is what changed. Where nothing of it changed, that is told as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cook.engines.base import EngineIdentity
from cook.nightly.night import Night
from cook.units import plural

MOST_TOLD = 8
"""Defaults or drafts told one by one: a new build may bring many."""
UNCHANGED = (
    "nothing that decides these figures changed: defaults, engine, drafts, target, prompts and "
    "machine are what they were"
)


class CauseKind(StrEnum):
    """What changed, the most telling first."""

    DEFAULT = "default"
    ENGINE = "engine"
    DRAFT = "draft"
    TARGET = "target"
    PROMPTS = "prompts"
    MACHINE = "machine"


@dataclass(frozen=True)
class Cause:
    """One thing that is not what it was; ``text`` says what it was then and is now."""

    kind: CauseKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def causes(now: Night, before: Night) -> tuple[Cause, ...]:
    """Everything that changed between the two nights, in the order of :class:`CauseKind`."""
    found = [*_defaults(now, before), *_engines(now, before), *_drafts(now, before)]
    found += _values(
        CauseKind.TARGET, ("the file", _short(now.target_digest), _short(before.target_digest))
    )
    found += _values(
        CauseKind.PROMPTS,
        ("the set", _short(now.prompts_sha256), _short(before.prompts_sha256)),
        ("max_tokens", str(now.max_tokens), str(before.max_tokens)),
        ("temperature", f"{now.temperature:g}", f"{before.temperature:g}"),
    )
    found += _values(CauseKind.MACHINE, ("its digest", now.machine, before.machine))
    return tuple(found)


def _values(kind: CauseKind, *pairs: tuple[str, str | None, str | None]) -> Iterator[Cause]:
    """A cause for each (name, now, then) of which both are known and differ."""
    for name, mine, theirs in pairs:
        if mine is not None and theirs is not None and mine != theirs:
            yield Cause(kind, f"{name} was {theirs} then, is {mine} now")


def _defaults(now: Night, before: Night) -> Iterator[Cause]:
    for name, mine in now.defaults.items():
        theirs = before.defaults.get(name)
        if not theirs or not mine:
            continue  # a help that tells none
        # Those that nobody says are what the figures rest on.
        moved = sorted(
            (flag for flag in mine if theirs.get(flag, mine[flag]) != mine[flag]),
            key=lambda flag: (flag in now.said, flag),
        )
        for flag in moved[:MOST_TOLD]:
            said = " (cook says it, so that only runs without it change)"
            where = said if flag in now.said else ""
            yield Cause(
                CauseKind.DEFAULT,
                f"{flag} of {name} was {theirs[flag]} then, is {mine[flag]} now{where}",
            )
        if len(moved) > MOST_TOLD:
            more = plural(len(moved) - MOST_TOLD, "more default")
            yield Cause(
                CauseKind.DEFAULT, f"{more} of {name} moved: {', '.join(moved[MOST_TOLD:])}"
            )


def _engines(now: Night, before: Night) -> Iterator[Cause]:
    for name, identity in now.engines.items():
        earlier = before.engines.get(name)
        if earlier is None or earlier.digest == identity.digest:
            continue
        made = [q for q in _moved_drafts(now, before) if now.quantized_by.get(q) == name]
        anew = f"; it made other files of {_some(made)}" if made else ""
        then, now_is = _named(earlier, identity), _named(identity, earlier)
        yield Cause(CauseKind.ENGINE, f"{name} was {then} then, is {now_is} now{anew}")


def _named(one: EngineIdentity, other: EngineIdentity) -> str:
    """A build's own word, and its digest where both builds say the same of themselves."""
    return one.build if one.build != other.build else f"{one.build} [{one.digest[:12]}]"


def _moved_drafts(now: Night, before: Night) -> list[str]:
    """Quants whose files have other bytes."""
    mine, theirs = now.draft_digests, before.draft_digests
    return [quant for quant in mine if theirs.get(quant, mine[quant]) != mine[quant]]


def _drafts(now: Night, before: Night) -> Iterator[Cause]:
    """Drafts that changed by themselves; what a new engine quantized anew is of that engine."""
    changed = {name for name, one in now.engines.items() if before.engines.get(name) != one}
    mine, theirs, by = now.draft_digests, before.draft_digests, now.quantized_by
    moved = [quant for quant in _moved_drafts(now, before) if by.get(quant) not in changed]
    for quant in moved[:MOST_TOLD]:
        then, now_is = _short(theirs[quant]), _short(mine[quant])
        yield Cause(CauseKind.DRAFT, f"the file of {quant} was {then} then, is {now_is} now")
    if len(moved) > MOST_TOLD:
        yield Cause(CauseKind.DRAFT, f"the files of {_some(moved[MOST_TOLD:])} changed, too")


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    told = ", ".join(names[:MOST_TOLD])
    return f"{told} and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else told


def _short(digest: str | None) -> str | None:
    """The beginning of a digest, for people; None for one that is not of the bytes."""
    if digest is None or digest.startswith("header:"):
        return None
    return digest.removeprefix("sha256:")[:12]
