"""Streamed answers: their events together, and what they tell of the draft's late reading."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.server_api import Api, Heard, parse_stream
from tests.attacks.servers import Raw, liar

FIRST_S = 100.0
"""When the first token was there."""


def final(n: int, ms: float, drafted: int | None, accepted: int | None) -> dict[str, object]:
    """The last event, as ik sends it: the figures, and no text."""
    timings: dict[str, object] = {
        "prompt_n": 9,
        "prompt_ms": 300.0,
        "predicted_n": n,
        "predicted_ms": ms,
    }
    if drafted is not None:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return {"content": "", "stop": True, "stopped_limit": True, "timings": timings}


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def told(
    reading_ms: float, cycles: list[int], cycle_ms: float, held: int = 0
) -> tuple[bytes, list[Heard]]:
    """A reply of drafts of 2 tokens, of which each of ``cycles`` accepts so many: the first begins
    with ``reading_ms``. The text of the first ``held`` tokens comes with the one after."""
    parts, heard, size, ms = [], [], 0, 0.0
    words = ["a", *("b" * accepted + "c" for accepted in cycles)]
    number = 0
    for burst, tokens in enumerate(words):
        ms += cycle_ms * bool(burst) + reading_ms * (burst == 1)
        for token in tokens:
            number += 1
            if number > held:
                parts.append(stream({"content": token, "stop": False}))
                size += len(parts[-1])
        heard.append((size, FIRST_S + ms / 1000))
    accepted = sum(cycles)
    parts.append(stream(final(1 + accepted + len(cycles), ms, 2 * len(cycles), accepted)))
    heard.append((size + len(parts[-1]), FIRST_S + ms / 1000))
    return b"".join(parts), heard


@given(
    st.floats(0, 30_000),
    st.lists(st.integers(0, 2), min_size=3, max_size=60),
    st.floats(10, 300),
    st.integers(0, 1),
)
def test_what_came_before_the_first_drafted_tokens_is_the_reading(
    reading_ms: float, cycles: list[int], cycle_ms: float, held: int
) -> None:
    """Also where the first token is half a letter, and its text comes with the next."""
    whole = parse_stream(*told(reading_ms, cycles, cycle_ms, held))
    assert whole.late_reading_ms == pytest.approx(reading_ms, abs=1e-3 * cycle_ms + 1e-3)
    assert len(whole.text) == 1 + sum(cycles) + len(cycles) - held


def test_what_does_not_tell_is_not_guessed() -> None:
    body, heard = told(500.0, [1, 2, 0], 50.0)
    at_once = [(size, FIRST_S) for size, _ in heard]
    assert parse_stream(body, at_once).late_reading_ms is None, "it came in one piece"
    events = [{"content": "a", "stop": False}, final(1, 0.001, None, None)]
    parts = [stream(event) for event in events]
    heard = [(len(parts[0]), 0.0), (len(parts[0] + parts[1]), 0.1)]
    assert parse_stream(b"".join(parts), heard).late_reading_ms is None, "nothing was drafted"
    body, heard = told(500.0, [2], 50.0)
    assert parse_stream(body, heard).late_reading_ms is None, "one cycle has no other beside it"


def served(body: bytes, piece: int) -> Raw:
    """``body`` in pieces of so many bytes, each by itself."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for start in range(0, len(body), piece):
            handler.wfile.write(body[start : start + piece])
            handler.wfile.flush()
            time.sleep(0.001)

    return Raw(answer)


def test_a_stream_is_read_as_it_comes() -> None:
    body, _ = told(500.0, [1, 2, 0], 50.0)
    with liar({"/completion": served(body, 40)}) as server:
        api = Api(server.url, None, server.url)
        found = api.complete({"prompt": "x", "stream": True})
        assert found.text == "abcbbcc"
        assert found.predicted_n == 7
        api.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "broke off"),
        (stream({"content": "a", "stop": False}), "broke off"),
        (b"data: [1]\n\n", "no JSON object"),
        (b"data: {\n\n", "no JSON object"),
        (stream({"error": {"message": "out of memory"}}), "amid the stream: out of memory"),
        (stream({"stop": True}), "content is no text"),
        (stream({"content": "", "stop": True}), "timings are missing"),
    ],
)
def test_a_broken_stream_says_what_is_wrong(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_stream(body, [(len(body), 0.0)])
