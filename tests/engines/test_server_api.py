"""Streamed answers: their events together, and what they tell of the draft's late reading."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cook.engines.server_api import (
    KEY_VARIABLE,
    Remote,
    StreamPart,
    checked_url,
    is_loopback,
    is_url,
    parse_stream,
    read_key,
    stream_parts,
)
from cook.errors import InputError, StepError
from tests.http_server import Raw, serving

FIRST_S = 100.0
"""When the first token was there."""


def final(n: object, ms: float, drafted: int | None, accepted: int | None) -> dict[str, object]:
    """The last event, as ik sends it: the figures, and no text."""
    reading = {"prompt_n": 9, "prompt_ms": 300.0}
    timings: dict[str, object] = {**reading, "predicted_n": n, "predicted_ms": ms}
    if drafted is not None:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return {"content": "", "stop": True, "stopped_limit": True, "timings": timings}


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def replied(
    reading_ms: float, cycles: list[int], cycle_ms: float, held: int = 0
) -> list[StreamPart]:
    """A reply of drafts of 2 tokens, of which each of ``cycles`` accepts so many: the first begins
    with ``reading_ms``. The text of the first ``held`` tokens comes with the one after."""
    events: list[StreamPart] = []
    ms, number = 0.0, 0
    words = ["a", *("b" * accepted + "c" for accepted in cycles)]
    for burst, tokens in enumerate(words):
        ms += cycle_ms * bool(burst) + reading_ms * (burst == 1)
        for token in tokens:
            number += 1
            if number > held:
                part = json.dumps({"content": token, "stop": False}).encode()
                events.append((FIRST_S + ms / 1000, part))
    accepted = sum(cycles)
    last = final(1 + accepted + len(cycles), ms, 2 * len(cycles), accepted)
    return [*events, (FIRST_S + ms / 1000, json.dumps(last).encode())]


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
    whole = parse_stream(replied(reading_ms, cycles, cycle_ms, held))
    assert whole.late_reading_ms == pytest.approx(reading_ms, abs=1e-3 * cycle_ms + 1e-3)
    assert len(whole.text) == 1 + sum(cycles) + len(cycles) - held


@given(
    st.floats(0, 3_000),
    st.lists(st.integers(0, 2), min_size=3, max_size=60),
    st.floats(10, 300),
    st.lists(st.tuples(st.floats(-0.5, 3), st.floats(0.01, 1)), max_size=20),
)
def test_stops_of_its_server_count_for_no_time_of_an_answer(
    reading_ms: float, cycles: list[int], cycle_ms: float, stops: list[tuple[float, float]]
) -> None:
    """Each after so many seconds that the server has run since its first token, and so long: it had
    read for 0.3 s before, and one stop goes on after the answer."""
    whole = parse_stream(replied(reading_ms, cycles, cycle_ms))
    stops = sorted(stops)

    def clock_s(ran_s: float) -> float:
        return FIRST_S + ran_s + sum(length for after, length in stops if after < ran_s)

    asked_s, first_s = clock_s(-0.3), clock_s(0.0)
    heard_s = tuple(clock_s(at_s - FIRST_S) for at_s in whole.heard_s)
    seen = replace(
        whole,
        prompt_ms=1000 * (first_s - asked_s),
        predicted_ms=1000 * (heard_s[-1] - first_s),
        heard_s=heard_s,
    )
    before = [0.0, *accumulate(length for _, length in stops)]
    begun = [FIRST_S + after + passed for (after, _), passed in zip(stops, before, strict=False)]
    spans = [(at, at + length) for at, (_, length) in zip(begun, stops, strict=True)]
    found = seen.without([*spans, (heard_s[-1] + 1, math.inf)], heard_s[-1])
    assert found.prompt_ms == pytest.approx(300.0, abs=1e-6)
    assert found.predicted_ms == pytest.approx(whole.predicted_ms, abs=1e-6)
    assert found.late_reading_ms == pytest.approx(whole.late_reading_ms, abs=1e-5)
    assert seen.without([], heard_s[-1]) == seen


def test_what_does_not_show_it_is_not_guessed() -> None:
    events = replied(500.0, [1, 2, 0], 50.0)
    at_once = [(FIRST_S, text) for _, text in events]
    assert parse_stream(at_once).late_reading_ms is None, "it came in one piece"
    parts = [{"content": "a", "stop": False}, final(1, 0.001, None, None)]
    plain = [(at / 10, json.dumps(part).encode()) for at, part in enumerate(parts)]
    assert parse_stream(plain).late_reading_ms is None, "nothing was drafted"
    events = replied(500.0, [2], 50.0)
    assert parse_stream(events).late_reading_ms is None, "one cycle has no other to compare with"


def in_pieces(body: bytes, size: int) -> list[StreamPart]:
    return stream_parts(body[start : start + size] for start in range(0, len(body), size))


def test_a_stream_is_read_as_it_comes() -> None:
    """A reply may hold any end of a line."""
    body = stream(*(json.loads(text) for _, text in replied(500.0, [1, 2, 0], 50.0)))
    for size in (1, 40, 1 << 20):
        found = parse_stream(in_pieces(body, size))
        assert (found.text, found.predicted_n) == ("abcbbcc", 7)
    text = "a\u2028b\x85c\x1cd\re"
    part = json.dumps({"content": text, "stop": False}, ensure_ascii=False).encode()
    body = b"data: " + part + b"\n\n" + stream(final(2, 10.0, None, None))
    assert parse_stream(in_pieces(body, 7)).text == text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "broke off"),
        (stream({"content": "a", "stop": False}), "broke off"),
        (b'data: {"conte\n\n', "it is no JSON object"),
        (stream({"error": {"message": "out of memory"}}), "amid the stream: out of memory"),
        (stream({"content": "", "stop": True}), "timings: Field required"),
        (stream(final("4", 1.0, None, None)), "predicted_n: Input should be a valid integer"),
    ],
)
def test_a_broken_stream_says_what_is_wrong(body: bytes, why: str) -> None:
    with Remote("http://127.0.0.1:9") as server, pytest.raises(StepError, match=why):
        server.parsed("/completion", parse_stream, in_pieces(body, 1 << 20))


def test_every_request_has_its_own_connection() -> None:
    """A router of llama-server closes one after its answer and does not say so: what is asked on
    it meanwhile is lost."""
    peers = []

    def keep_open(handler: BaseHTTPRequestHandler) -> None:
        peers.append(handler.client_address)
        handler.close_connection = False
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with serving({"/props": Raw(keep_open)}) as fake, Remote(fake.url) as remote:
        assert [remote.get("/props") for _ in range(3)] == [{}, {}, {}]
    assert len(set(peers)) == 3


def test_addresses() -> None:
    assert checked_url("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    assert checked_url("https://host/v1") == "https://host/v1"
    assert is_url("https://host")
    assert not is_url("model.gguf")
    ours = ("http://127.0.0.1:8080", "http://localhost", "http://[::1]:1/v1", "http://127.9.9.9")
    assert all(map(is_loopback, ours))
    others = ("http://127.0.0.1.example", "http://localhost.example", "https://10.0.0.1")
    assert not any(map(is_loopback, others)), "it is known by the host"


@pytest.mark.parametrize(
    "url",
    [
        *("http://", "ftp://host", "http://host:0", "http://host:99999", "http://[::1"),
        *("http://user:secret@host", "http://host?key=secret"),
    ],
)
def test_other_addresses_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_url(url)
    assert "secret" not in caught.value.message


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_key(None) is None
    monkeypatch.setenv(KEY_VARIABLE, " abc ")
    assert read_key(None) == "abc"
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    assert read_key(file) == "sk-1"
    for bad in ("", "two words", "a\nb", "sk-\u00e9", "x" * 20_000):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match="holds no key"):
            read_key(file)
    monkeypatch.setenv(KEY_VARIABLE, "sk\r\nX-Evil: 1")
    with pytest.raises(InputError) as caught:
        read_key(None)
    assert "Evil" not in caught.value.message
    with pytest.raises(InputError, match="cannot be read"):
        read_key(tmp_path / "absent")
