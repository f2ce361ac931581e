"""The history: nights as JSON lines, appended whole, bounded, readable after any accident.

Two cooks may append at once (a lock), a crash leaves at most one torn line (skipped, with a
warning), and when the file grows past its bound the older half goes, but no reference night.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats import strict_json
from cook.graph.locks import file_lock
from cook.nightly.night import VERSION, Night, Series, columns_fault
from cook.record.versioned import adapter_of, json_values

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
            _compact(path)


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


def _compact(path: Path) -> None:
    history = read_history(path)
    kept = {night.id for night in history.nights[len(history.nights) // 2 :]}
    for series in {night.series for night in history.nights}:
        if (found := history.reference(series)) is not None:
            kept |= {night.id for night in (*found.first, *found.last)}
    with atomic_write(path) as stream:
        stream.writelines(_line(night) for night in history.nights if night.id in kept)
