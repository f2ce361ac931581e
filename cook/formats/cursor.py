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


def shown(text: str) -> str:
    """``text`` quoted, escaped and cut, fit for a message."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


class MalformedFile(InputError):
    """``path`` does not hold its format, or ends too early; ``reason`` says where."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Cursor(Closing):
    """Walks the first ``limit`` bytes of a regular file; use as a context manager."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.position = 0
        try:
            # O_NONBLOCK: opening a FIFO must not hang; what is not a regular file is refused.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise _cannot_read(path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise InputError(f"{path}: not a regular file")
        self._file = os.fdopen(descriptor, "rb", buffering=_WINDOW)
        self.file_bytes = status.st_size
        self._limit = min(limit, self.file_bytes)

    def close(self) -> None:
        self._file.close()

    def fail(self, field: str, reason: str, *, at: int | None = None) -> NoReturn:
        """Raise the MalformedFile for ``field`` at byte ``at`` (default: here)."""
        where = self.position if at is None else at
        raise MalformedFile(self.path, f"{field} at byte {where}: {reason}")

    def take(self, count: int, field: str) -> bytes:
        """The next ``count`` bytes, allocated only if the file has so many."""
        self._require(count, field)
        data = self._read(count, field)
        self.position += count
        return data

    def _require(self, count: int, field: str) -> None:
        left = self.file_bytes - self.position
        if count > left:
            self.fail(field, f"needs {count} bytes and the file ends after {max(left, 0)}")
        if self.position + count > self._limit:
            self.fail(field, f"the header is larger than the {self._limit} bytes cook reads")

    def _read(self, count: int, field: str) -> bytes:
        try:
            data = self._file.read(count)
        except OSError as error:
            raise _cannot_read(self.path, error) from error
        if len(data) < count:
            self.fail(field, "the file was cut while it was read")
        return data

    def i32(self, field: str) -> int:
        """The next signed 32-bit number."""
        return int.from_bytes(self.take(4, field), "little", signed=True)

    def u32(self, field: str) -> int:
        """The next unsigned 32-bit number."""
        return int.from_bytes(self.take(4, field), "little")

    def u64(self, field: str) -> int:
        """The next unsigned 64-bit number."""
        return int.from_bytes(self.take(8, field), "little")

    def count(self, field: str, limit: int, least_bytes: int) -> int:
        """The next u64 as the number of things to come, each of ``least_bytes`` or more."""
        at = self.position
        count = self.u64(field)
        if count > limit:
            self.fail(field, f"{count} is more than {limit}", at=at)
        if count * least_bytes > self.file_bytes - self.position:
            self.fail(field, f"{count} cannot fit in the file", at=at)
        return count

    def name(self, field: str, limit: int, taken: Container[str], *, wide: bool = True) -> str:
        """The next string as a name: 1 to ``limit`` bytes of UTF-8 without control characters,
        and none of ``taken``. ``wide``: its length is a u64, else an i32."""
        start = self.position
        length = self.u64(field) if wide else self.i32(field)
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

    def strings(self, count: int, field: str) -> bytes:
        """The next ``count`` strings as they lie in the file: a length (u64) and bytes each.

        Read in windows, since a vocabulary has hundreds of thousands of them.
        """
        start, end, data = self.position, 0, bytearray()
        unpack = struct.Struct("<Q").unpack_from

        def load(index: int, size: int) -> None:
            """Have ``size`` bytes from ``end`` on in ``data``."""
            self.position = start + end
            self._require(size, f"{field}[{index}]")
            wanted = max(end + size - len(data), _WINDOW)
            data.extend(self._read(min(wanted, self._limit - start - len(data)), field))

        for index in range(count):
            if end + 8 > len(data):
                load(index, 8)
            length = unpack(data, end)[0]
            end += 8
            if end + length > len(data):
                load(index, length)
            end += length
        self.position = start + end
        self._file.seek(self.position)
        return bytes(memoryview(data)[:end])


def read_range(path: Path, offset: int, count: int) -> bytes:
    """``count`` bytes of ``path`` from ``offset``; InputError if the file has fewer."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(count)
    except OSError as error:
        raise _cannot_read(path, error) from error
    if len(data) < count:
        raise InputError(
            f"{path}: data at byte {offset}: needs {count} bytes and there are {len(data)}"
        )
    return data


def read_text(path: Path, limit: int) -> str:
    """A text of at most ``limit`` bytes in UTF-8; InputError for any other file."""
    with Cursor(path, limit) as cursor:
        if cursor.file_bytes > limit:
            raise InputError(f"{path}: {cursor.file_bytes} bytes, and cook reads at most {limit}")
        raw = cursor.take(cursor.file_bytes, "text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].split(b"\n")
        place = f"{len(before)}:{len(before[-1]) + 1}"
        raise InputError(f"{path}:{place}: not text in UTF-8: {error.reason}") from None


def _cannot_read(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"{path}: cannot be read: {reason}")
