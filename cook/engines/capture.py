"""One output stream of a program, on its way to a log file."""

from __future__ import annotations

from pathlib import Path

TAIL_BYTES = 16 << 10


class Capture:
    """Writes raw bytes to ``path``, at most ``limit`` of them, and keeps the last 16 KiB.

    Beyond the limit only the end is kept: the log then says how much was left out and ends
    with the last bytes. ``error`` is set, not raised, when the log itself cannot be written.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.written = self.dropped = 0
        self.error: OSError | None = None
        self._last = bytearray()
        self._file = path.open("wb", buffering=0)

    @property
    def truncated(self) -> bool:
        return self.dropped > 0

    @property
    def tail(self) -> str:
        return bytes(self._last[-TAIL_BYTES:]).decode("utf-8", errors="replace")

    def write(self, chunk: bytes) -> None:
        self._last += chunk
        if len(self._last) > 4 * TAIL_BYTES:
            del self._last[:-TAIL_BYTES]
        keep = chunk[: max(0, self.limit - self.written)]
        self.dropped += len(chunk) - len(keep)
        self._put(keep)
        self.written += len(keep)

    def close(self) -> None:
        if self._file.closed:
            return
        if self.dropped:
            end = bytes(self._last[-min(TAIL_BYTES, self.dropped) :])
            self._put(f"\n[cook: {self.dropped - len(end)} bytes left out here]\n".encode() + end)
        self._file.close()

    def _put(self, data: bytes) -> None:
        try:
            while data and self.error is None:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.error = error
