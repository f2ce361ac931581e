"""A link between two programs on this machine that is as slow as one between two machines.

A relay on loopback: what goes in comes out after half of a round trip, at so many bytes a second.
For machines whose kernel cannot shape loopback (``tc netem`` in a network namespace), and without
its rights.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType

CHUNK = 1 << 16
ASLEEP_S = 0.0002
"""A thread wakes up too late by about as much: the rest of a wait is spent awake."""


@dataclass
class ShapedLink:
    """Connections to ``port`` of this machine go on to ``beyond``; use as a context manager.

    ``round_trip_s`` beyond what a relay takes anyway; ``bytes_per_s`` each way, None: as fast as
    loopback. ``turns`` counts how often the side that connected waited for an answer: words of
    its own after words of the other's; ``sent`` bytes both ways.
    """

    beyond: int
    round_trip_s: float = 0.0
    bytes_per_s: float | None = None
    turns: int = 0
    sent: int = 0
    _closing: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _open: list[socket.socket] = field(default_factory=list)

    def __enter__(self) -> ShapedLink:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def measured_round_trip_s(self, times: int = 200) -> float:
        """Median of small questions and answers through a link like this one."""
        with socket.create_server(("127.0.0.1", 0)) as echo:
            threading.Thread(target=_answer, args=(echo,), daemon=True).start()
            port = echo.getsockname()[1]
            with (
                ShapedLink(port, self.round_trip_s, self.bytes_per_s) as link,
                socket.create_connection(("127.0.0.1", link.port)) as ours,
            ):
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                taken = []
                for _ in range(times):
                    began = time.perf_counter()
                    ours.sendall(b"?")
                    ours.recv(1)
                    taken.append(time.perf_counter() - began)
        return median(taken)

    def _start(self, run: object, *given: object) -> None:
        thread = threading.Thread(target=run, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            try:
                theirs = socket.create_connection(("127.0.0.1", self.beyond))
            except OSError:
                ours.close()
                continue
            self._open += [ours, theirs]
            for one in (ours, theirs):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            spoke = ["theirs"]
            for name, source, sink in (("ours", ours, theirs), ("theirs", theirs, ours)):
                waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                self._start(self._read, name, source, waiting, spoke)
                self._start(self._write, sink, waiting)

    def _read(
        self,
        name: str,
        source: socket.socket,
        waiting: queue.SimpleQueue[tuple[float, bytes]],
        spoke: list[str],
    ) -> None:
        free_s = 0.0
        while True:
            try:
                words = source.recv(CHUNK)
            except OSError:
                words = b""
            now = time.perf_counter()
            if words and name == "theirs" and spoke[0] == "ours":
                self.turns += 1
            spoke[0] = name
            self.sent += len(words)
            # The line is busy with what went before, then with this.
            free_s = max(now, free_s) + (len(words) / self.bytes_per_s if self.bytes_per_s else 0.0)
            waiting.put((free_s + self.round_trip_s / 2, words))
            if not words:
                return

    def _write(self, sink: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due_s, words = waiting.get()
            while (left := due_s - time.perf_counter()) > 0:
                if left > ASLEEP_S:
                    time.sleep(left - ASLEEP_S)
            try:
                if not words:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(words)
            except OSError:
                return


def _answer(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        ours, _ = listening.accept()
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with ours:
            while words := ours.recv(CHUNK):
                ours.sendall(words)
