"""A night: one record, without what no later night is compared with, and its verdict."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cook.errors import InputError
from cook.record.record import Candidate, Record

VERSION = 2
Series = tuple[str, str, str, str]
"""What nights must share to be compared: cell, recipe's text, engines' names, machine."""
CONDITIONS = ("target_digest", "prompts_sha256", "max_tokens", "temperature")
"""Parts of a record that must be equal for counts and speeds to be of the same thing."""


@dataclass(frozen=True)
class Night:
    """``cell`` is its place in a pipeline. ``good`` None: not judged yet; ``accepted``: the user
    took it as what later nights are compared with."""

    version: int
    id: str
    cell: str
    record: Record
    failures: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    good: bool | None = None
    accepted: bool = False

    @property
    def created(self) -> str:
        return self.record.created

    @property
    def pick(self) -> str | None:
        return self.record.pick.candidate

    @property
    def series(self) -> Series:
        record = self.record
        engines = "+".join(record.engines)
        return (self.cell, record.recipe_sha256, engines, record.machine.digest)

    @property
    def live(self) -> tuple[Candidate, ...]:
        """The candidates that ran live."""
        return tuple(c for c in self.record.candidates if c.prompts is not None)

    def candidate(self, name: str | None) -> Candidate | None:
        return self.record.candidate(name) if name is not None else None

    def no_draft(self, engine: str) -> Candidate | None:
        return next((c for c in self.live if c.draft is None and c.engine == engine), None)

    def judged(self, failures: tuple[str, ...], regressions: tuple[str, ...]) -> Night:
        """This night with its verdict: good when nothing failed and nothing got worse."""
        good = not failures and not regressions
        return replace(self, failures=failures, regressions=regressions, good=good)


def night_of(record: Record, cell: str | None = None) -> Night:
    """``record`` as a night of ``cell`` (absent: a name made of its recipe and engine)."""
    small = replace(
        record,
        recipe_text="",
        candidates=tuple(
            replace(c, categories={}, predicted=None, output=None, counts=None, command=())
            for c in record.candidates
            if c.prompts is not None
        ),
        drafts=tuple(replace(draft, types=(), type_counts={}) for draft in record.drafts),
        steps=(),
        imatrix=None,
        factors=(),
        chains=(),
        slots=(),
        left_out=(),
        warnings=(),
    )
    name = cell or "-".join([record.recipe, *record.engines])
    night = Night(VERSION, uuid.uuid4().hex[:12], name, small)
    if (fault := columns_fault(night)) is not None:
        raise InputError(fault)
    return night


def columns_fault(night: Night) -> str | None:
    """Which figures per prompt have columns of different lengths, or None."""
    tables: list[tuple[str, object]] = [(f"replay of {r.draft}", r) for r in night.record.replayed]
    for one in night.live:
        tables += [(one.name, one.prompts), (one.name, one.reference or one.prompts)]
    for name, table in tables:
        columns = [column for column in vars(table).values() if isinstance(column, tuple)]
        if len({len(column) for column in columns if column}) > 1:
            return f"{name}: figures per prompt whose columns do not fit each other"
    return None


def changed_since(now: Record, then: Record) -> Iterator[str]:
    """What the figures rest on and is not what it was: a line each."""
    for name, engine in now.engines.items():
        if name in then.engines and then.engines[name].digest != engine.digest:
            yield f"engine {name}: {then.engines[name].build} then, {engine.build} now"
        old, new = then.defaults.get(name, {}), now.defaults.get(name, {})
        if moved := [f for f in new if old.get(f, new[f]) != new[f]]:
            shown = ", ".join(f"{f} {old[f]} then, {new[f]} now" for f in moved[:8])
            yield f"defaults of {name}: {shown}"
    digests = {draft.quant: draft.digest for draft in then.drafts if draft.digest}
    if moved := [d.quant for d in now.drafts if digests.get(d.quant, d.digest) != d.digest]:
        yield f"the bytes of the drafts {', '.join(moved[:8])}"


def conditions_changed(now: Record, then: Record) -> str | None:
    """Why figures of the two nights are of different things, or None."""
    for name in CONDITIONS:
        ours, theirs = getattr(now, name), getattr(then, name)
        if ours != theirs:
            return f"{name} is another: {theirs} then, {ours} now"
    return None
