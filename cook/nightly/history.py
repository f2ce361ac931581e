"""The history: nights as JSON lines, appended whole, bounded, readable after any accident.

One line a night. Two cooks may append at once (a lock), a crash leaves at most one torn line
(skipped, with a warning), and when the file grows past its bounds the oldest nights go, but
never the last good one of a series.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from cook.errors import InputError
from cook.files import atomic_write
from cook.formats import strict_json
from cook.graph.locks import file_lock
from cook.nightly.night import VERSION, Night, Series

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_BYTES = 64 << 20
MAX_LINE_BYTES = 8 << 20
HINT = "move the file away: the next `cook sweep` begins another"
KEPT_NIGHTS = 400
"""Nights kept of each series when the file is compacted."""


@dataclass(frozen=True)
class History:
    """All readable nights, oldest first, and what could not be read."""

    path: Path
    nights: tuple[Night, ...]
    warnings: tuple[str, ...] = ()

    def of(self, night: Night) -> tuple[Night, ...]:
        """Earlier nights of the same series, oldest first; ``night`` itself left out."""
        return tuple(n for n in self.nights if n.series == night.series and n.id != night.id)

    def last_good(self, night: Night) -> Night | None:
        """The night that ``night`` is judged against."""
        return _last_good(self.of(night))

    def last_of_cell(self, night: Night) -> Night | None:
        """The cell's newest good night of any series: another recipe's text, or machine."""
        return _last_good([n for n in self.nights if n.cell == night.cell and n.id != night.id])

    def last_good_of(self, series: Series) -> Night | None:
        """The night that the next one of ``series`` will be judged against."""
        return _last_good([n for n in self.nights if n.series == series])

    def newest(self, cell: str, machine: str) -> Night | None:
        """The newest night of a cell on a machine, whatever its recipe said."""
        found = (n for n in reversed(self.nights) if n.cell == cell and n.machine == machine)
        return next(found, None)


def read_history(path: Path) -> History:
    """The history at ``path``; empty where there is none. InputError when it can't be read."""
    try:
        size = path.stat().st_size
        if size > 2 * MAX_BYTES:
            raise InputError(f"{path}: {size >> 20} MiB, not a history of cook")
        raw = path.read_bytes()
    except FileNotFoundError:
        return History(path, ())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    nights: list[Night] = []
    warnings: list[str] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        found = _read_line(line)
        if isinstance(found, str):
            warnings.append(f"{path}:{number}: not read: {found}")
        else:
            nights.append(found)
    if warnings and not nights:
        raise InputError(f"{warnings[0]}; no line is a night of cook", hint=HINT)
    return History(path, tuple(_marked(nights)), tuple(warnings))


def append(path: Path, night: Night) -> None:
    """Add ``night`` as one line, durably; compact the file when it has grown too large."""
    line = _line(night)
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{path}: a night of {len(line) >> 20} MiB is too large for the history")
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock")):
        _append(path, line)
        if path.stat().st_size > MAX_BYTES or _crowded(path):
            _compact(path)


def accept(path: Path, cell: str, machine: str) -> Night:
    """Take the newest night of ``cell`` for good, whatever its gates said; the accepted night.

    A line of its own: nothing that was written is changed.
    """
    from dataclasses import replace

    newest = read_history(path).newest(cell, machine)
    if newest is None:
        raise InputError(f"{path}: no night of {cell} on this machine")
    if newest.failures:
        raise InputError(
            f"{cell}: its last night failed: {newest.failures[0]}", hint="run it again"
        )
    accepted = replace(newest, good=True)
    append(path, accepted)
    return accepted


def _marked(nights: Sequence[Night]) -> Iterable[Night]:
    """Each night once: a later line of the same night (its acceptance) replaces the earlier."""
    return {night.id: night for night in nights}.values()


def _last_good(nights: Sequence[Night]) -> Night | None:
    """The newest good night, undisturbed if there is one.

    Else a slowdown on a night that other programs disturbed, where it cannot be judged,
    would be what later nights are measured by.
    """
    good = [n for n in nights if n.good]
    return next((n for n in reversed(good) if not n.disturbed), good[-1] if good else None)


@cache
def _adapter() -> TypeAdapter[Night]:
    """Made once: it takes longer than to read a line."""
    from pydantic import TypeAdapter

    return TypeAdapter(Night)


def _line(night: Night) -> bytes:
    document = _adapter().dump_python(night, mode="json")
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _read_line(line: bytes) -> Night | str:
    """The night on a line, or why there is none."""
    from pydantic import ValidationError

    if len(line) > MAX_LINE_BYTES:
        return "longer than any night"
    try:
        document = strict_json.loads(line)
    except ValueError:
        return "not JSON (a torn line?)"
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        return f"version {version!r}, this cook reads {VERSION}"
    try:
        night = _adapter().validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    for column in night.candidates:
        parts = (column.tokens, column.decode_ms, column.wall_ms, column.drafted, column.accepted)
        if any(len(part) != len(night.prompts) for part in parts):
            return f"{column.name}: columns that do not fit the prompts"
    for replay in night.replays:
        if any(len(part) != len(night.prompts) for part in (replay.drafted, replay.accepted)):
            return f"replay of {replay.draft}: columns that do not fit the prompts"
    return night


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        # After a torn line the new one starts on a line of its own.
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crowded(path: Path) -> bool:
    with path.open("rb") as stream:
        return sum(1 for _ in stream) > 16 * KEPT_NIGHTS


def _compact(path: Path) -> None:
    """Drop the oldest nights, half of what is allowed at least, keeping each last good one."""
    history = read_history(path)
    by_series: dict[tuple[str, ...], list[Night]] = {}
    for night in history.nights:
        by_series.setdefault(night.series, []).append(night)
    precious = {
        next((n.id for n in reversed(nights) if n.good), nights[-1].id)
        for nights in by_series.values()
    }
    recent = {n.id for nights in by_series.values() for n in nights[-KEPT_NIGHTS:]}
    lines: list[bytes] = []
    room = MAX_BYTES // 2
    for night in reversed(history.nights):
        line = _line(night)
        if night.id in precious or (night.id in recent and room > len(line)):
            lines.append(line)
            room -= len(line)
    with atomic_write(path) as stream:
        stream.writelines(reversed(lines))
