"""Nights, and their history: JSON lines, appended whole, bounded, readable after any accident.

A night is one record, without what no later night is compared with, and its verdict. Two cooks may
append at once (a lock), a crash leaves at most one torn line (skipped, with a warning), and when
the file grows past its bound the older half goes, but no reference night.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats import strict_json
from cook.graph.locks import file_lock
from cook.record.record import Candidate, Record
from cook.record.versioned import adapter_of, json_values

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
    before = _conditions(then)
    for name, ours in _conditions(now).items():
        if ours != (theirs := before[name]):
            return f"{name} is another: {theirs} then, {ours} now"
    return None


def _conditions(record: Record) -> dict[str, object]:
    served = (c.serving.target_args.threads for c in record.candidates if c.serving)
    return {name: getattr(record, name) for name in CONDITIONS} | {"threads": next(served, None)}


MAX_BYTES = 64 << 20
POOLED = 7
"""Good nights that are pooled, first and last."""


@dataclass(frozen=True)
class ReferenceNights:
    """What a night is compared with.

    ``accepted`` is the night that the user accepted last, or the first good one of the series: it
    does not move. Speeds are noisy, so they are pooled: ``first`` are the good nights from the
    accepted one on, seven at most, ``last`` the latest seven. The spread between nights is taken
    from ``noise``.
    """

    accepted: Night
    first: tuple[Night, ...]
    last: tuple[Night, ...]
    noise: tuple[Night, ...]


@dataclass(frozen=True)
class History:
    """All readable nights, oldest first, and what could not be read."""

    path: Path
    nights: tuple[Night, ...]
    warnings: tuple[str, ...] = ()

    def reference(self, series: Series) -> ReferenceNights | None:
        """What the next night of ``series`` is compared with.

        Nights that other programs disturbed count only where there is no other.
        """
        nights = [n for n in self.nights if n.series == series]
        good = [n for n in nights if n.good and not n.record.disturbed] or [
            n for n in nights if n.good
        ]
        accepted = next((n for n in reversed(nights) if n.accepted), good[0] if good else None)
        if accepted is None:
            return None
        since = nights[nights.index(accepted) :]
        pooled = tuple(n for n in since if n is accepted or n in good)
        # Before the noise is known, false alarms must not keep it unknown.
        noise = pooled if len(pooled) >= 3 else tuple(n for n in since if not n.record.disturbed)
        return ReferenceNights(accepted, pooled[:POOLED], pooled[-POOLED:], noise)

    def newest(self, cell: str, machine: str) -> Night | None:
        """The newest night of a cell on a machine, whatever its recipe said."""
        nights = (n for n in reversed(self.nights) if (n.cell, n.series[-1]) == (cell, machine))
        return next(nights, None)


def read_history(path: Path) -> History:
    """The history at ``path``; empty where there is none. InputError when it can't be read."""
    try:
        if path.stat().st_size > 2 * MAX_BYTES:
            raise InputError(f"{path}: too large for a history of cook")
        raw = path.read_bytes()
    except FileNotFoundError:
        return History(path, ())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    nights: dict[str, Night] = {}
    warnings: list[str] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            found = _read_line(line)
            if isinstance(found, str):
                warnings.append(f"{path}:{number}: not read: {found}")
            else:
                nights[found.id] = found  # a later line of one night, its acceptance, replaces it
    if warnings and not nights:
        hint = "move the file away: the next `cook sweep` begins another"
        raise InputError(f"{warnings[0]}; no line is a night of cook", hint=hint)
    return History(path, tuple(nights.values()), tuple(warnings))


def append(path: Path, night: Night) -> None:
    """Add ``night`` as one line, durably; compact the file when it has grown too large."""
    line = _line(night)
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock")):
        with path.open("ab+") as stream:
            if stream.tell() and os.pread(stream.fileno(), 1, stream.tell() - 1) != b"\n":
                stream.write(b"\n")  # after a torn line the new one starts on a line of its own
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        if path.stat().st_size > MAX_BYTES:
            history = read_history(path)
            kept = {night.id for night in history.nights[len(history.nights) // 2 :]}
            for series in {night.series for night in history.nights}:
                if (found := history.reference(series)) is not None:
                    kept |= {night.id for night in (*found.first, *found.last)}
            with atomic_write(path) as whole:
                whole.writelines(_line(night) for night in history.nights if night.id in kept)


def accept(path: Path, cell: str, machine: str) -> Night:
    """Take the newest night of ``cell`` as what later ones are compared with, and return it.

    A line of its own: nothing that was written is changed.
    """
    newest = read_history(path).newest(cell, machine)
    if newest is None:
        raise InputError(f"{path}: no night of {cell} on this machine")
    if newest.failures:
        failed = f"{cell}: its last night failed: {newest.failures[0]}"
        raise InputError(failed, hint="run it again")
    accepted = replace(newest, good=True, accepted=True)
    append(path, accepted)
    return accepted


def _line(night: Night) -> bytes:
    document = json_values(night)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _read_line(line: bytes) -> Night | str:
    """The night on a line, or why there is none."""
    from pydantic import ValidationError

    try:
        document = strict_json.loads(line)
    except ValueError:
        return "not JSON (a torn line?)"
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        return f"version {version!r}, this cook reads {VERSION}"
    try:
        night = adapter_of(Night).validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return columns_fault(night) or night
