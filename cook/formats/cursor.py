"""A bounded reader of little-endian headers that may lie.

Bytes are fetched as the parse walks, in windows, so that a terabyte file costs its header and a
count that lies costs nothing: every length is checked against what the file holds *before* it
is read. Every complaint names the file, the byte offset and the field.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

from cook.closing import Closing
from cook.errors import InputError

_WINDOW = 1 << 20
_LARGEST_READ = 1 << 26
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def shown(text: str) -> str:
    """``text`` quoted, escaped and cut, fit for a message."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


class MalformedFile(InputError):
    """``path`` does not hold what its format asks for, or ends before it does; ``reason`` says
    where."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Cursor(Closing):
    """Walks the first ``limit`` bytes of a regular file; use as a context manager.

    ``buffer`` holds what was fetched, from the file's first byte.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.position = 0
        self.buffer = bytearray()
        try:
            # O_NONBLOCK: opening a FIFO must not hang; what is not a regular file is refused.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise _cannot_read(path, error) from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise InputError(f"{path}: not a regular file")
        self.file_bytes = status.st_size
        self._limit = min(limit, self.file_bytes)

    def close(self) -> None:
        os.close(self._descriptor)

    def fail(self, field: str, reason: str, *, at: int | None = None) -> NoReturn:
        """Raise the MalformedFile for ``field`` at byte ``at`` (default: here)."""
        where = self.position if at is None else at
        raise MalformedFile(self.path, f"{field} at byte {where}: {reason}")

    def need(self, count: int, field: str) -> None:
        """Have ``count`` more bytes in the buffer, or fail without having allocated them."""
        end, have = self.position + count, len(self.buffer)
        if end > have:
            self._check(count, field)
            wanted = min(max(end, have + _WINDOW), self._limit) - have
            self.buffer += _read(self._descriptor, self.path, have, wanted)

    def _check(self, count: int, field: str) -> None:
        if self.position + count > self._limit:
            left = self.file_bytes - self.position
            if count > left:
                self.fail(field, f"needs {count} bytes and the file ends after {max(left, 0)}")
            self.fail(field, f"the header is larger than the {self._limit} bytes cook reads")

    def take(self, count: int, field: str) -> bytes:
        """The next ``count`` bytes."""
        self.need(count, field)
        start = self.position
        self.position = start + count
        return bytes(memoryview(self.buffer)[start : self.position])

    def stream(self, count: int, field: str) -> bytes:
        """The next ``count`` bytes, read straight from the file and not kept in ``buffer``."""
        self._check(count, field)
        data = _read(self._descriptor, self.path, self.position, count)
        self.position += count
        return data

    def i32(self, field: str) -> int:
        """The next signed 32-bit number, streamed."""
        return int.from_bytes(self.stream(4, field), "little", signed=True)

    def u32(self, field: str) -> int:
        """The next unsigned 32-bit number."""
        self.need(4, field)
        value: int = _U32.unpack_from(self.buffer, self.position)[0]
        self.position += 4
        return value

    def u64(self, field: str) -> int:
        """The next unsigned 64-bit number."""
        self.need(8, field)
        value: int = _U64.unpack_from(self.buffer, self.position)[0]
        self.position += 8
        return value

    def count(self, field: str, limit: int, least_bytes: int) -> int:
        """The next u64 as the number of things to come, each of ``least_bytes`` or more."""
        at = self.position
        count = self.u64(field)
        if count > limit:
            self.fail(field, f"{count} is more than {limit}", at=at)
        if count * least_bytes > self.file_bytes - self.position:
            self.fail(field, f"{count} cannot fit in the file", at=at)
        return count

    def name(self, field: str, limit: int, taken: Container[str]) -> str:
        """The next string as a name: 1 to ``limit`` bytes of UTF-8 without control characters,
        and none of ``taken``."""
        start = self.position
        length = self.u64(field)
        if not 1 <= length <= limit:
            self.fail(field, f"length {length} is not in 1 to {limit}", at=start)
        raw = self.take(length, field)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.fail(field, "is not UTF-8", at=start)
        if not text.isprintable():
            self.fail(field, f"{shown(text)} has control characters", at=start)
        if text in taken:
            self.fail(field, f"{shown(text)} occurs twice", at=start)
        return text

    def skip_strings(self, count: int, field: str) -> None:
        """Walk over ``count`` strings of u64 length and bytes."""
        position, buffer, unpack = self.position, self.buffer, _U64.unpack_from
        loaded = len(buffer)
        for index in range(count):
            start = position
            position += 8
            if position <= loaded:
                position += unpack(buffer, start)[0]
                if position <= loaded:
                    continue
            # Out of the window, or a length that lies: take the checked way.
            self.position = start
            length = self.u64(f"{field}[{index}]")
            self.need(length, f"{field}[{index}]")
            position = self.position + length
            loaded = len(buffer)
        self.position = position


def read_range(path: Path, offset: int, count: int) -> bytes:
    """``count`` bytes of ``path`` from ``offset``; InputError if the file has fewer."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file.fileno(), path, offset, count)
    except OSError as error:
        raise _cannot_read(path, error) from error


def read_text(path: Path, limit: int) -> str:
    """A text of at most ``limit`` bytes in UTF-8; InputError for any other file."""
    with Cursor(path, limit) as cursor:
        if cursor.file_bytes > limit:
            raise InputError(f"{path}: {cursor.file_bytes} bytes, and cook reads at most {limit}")
        raw = cursor.stream(cursor.file_bytes, "text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].split(b"\n")
        place = f"{len(before)}:{len(before[-1]) + 1}"
        raise InputError(f"{path}:{place}: not text in UTF-8: {error.reason}") from None


def _read(descriptor: int, path: Path, offset: int, count: int) -> bytes:
    """``count`` bytes from ``offset``, allocated as they come; InputError if there are fewer."""
    parts, have = [], 0
    while have < count:
        try:
            part = os.pread(descriptor, min(count - have, _LARGEST_READ), offset + have)
        except OSError as error:
            raise _cannot_read(path, error) from error
        if not part:
            raise InputError(
                f"{path}: data at byte {offset}: needs {count} bytes and there are {have}"
            )
        parts.append(part)
        have += len(part)
    return b"".join(parts)


def _cannot_read(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"{path}: cannot be read: {reason}")
