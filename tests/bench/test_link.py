"""The relay passes every byte on, later, and counts what it saw."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.link import ShapedLink


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that says everything back."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                ours, _ = listening.accept()
            except OSError:
                return
            with ours:
                while words := ours.recv(1 << 16):
                    ours.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]


def asked(port: int, words: bytes) -> float:
    """Seconds until all of ``words`` were back."""
    with socket.create_connection(("127.0.0.1", port)) as ours:
        began = time.perf_counter()
        ours.sendall(words)
        back = b""
        while len(back) < len(words):
            back += ours.recv(1 << 16)
        assert back == words
        return time.perf_counter() - began


def test_an_answer_takes_the_round_trip(echo: int) -> None:
    with ShapedLink(echo, 0.05) as link:
        assert 0.05 <= asked(link.port, b"hello") < 1.0
    assert link.turns == 1
    assert link.sent == 10


def test_bytes_take_their_time(echo: int) -> None:
    with ShapedLink(echo, bytes_per_s=1e6) as link:
        assert asked(link.port, bytes(50_000)) >= 0.05


def test_what_a_round_trip_really_is_is_measured() -> None:
    with ShapedLink(1, 0.02) as link:
        assert 0.02 <= link.measured_round_trip_s(times=5) < 0.5


def test_nobody_behind_it_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        ShapedLink(port, 0.0) as link,
        socket.create_connection(("127.0.0.1", link.port), timeout=5) as ours,
    ):
        assert ours.recv(1) == b""
