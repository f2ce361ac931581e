"""Servers that lie to ``cook trace --target URL`` and ``cook score --url`` are refused, soon.

What they tell never ends in a traceback, in memory that is not there, in a trace with nonsense in
it, or in the key going anywhere but to the address that was given.
"""

from __future__ import annotations

import math
import resource
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cook.engines.server_api import Remote
from cook.errors import CookError, InputError, StepError
from cook.formats.sampling import Sampling
from cook.formats.trace_file import TraceFile
from cook.prompts.prompt_set import Prompt, PromptSet
from cook.score_url import score_url
from cook.trace.server_target import ServerTarget, server_facts
from cook.trace.session import TracePlan, record
from tests.attacks.conftest import at_length
from tests.attacks.mutants import VALUES
from tests.attacks.servers import honest, liar
from tests.http_server import Raw

KEY = "sk-attack-0123456789"
PROMPTS = tuple(Prompt(f"p{i}", "ab"[i % 2], f"{i} words", "pick") for i in range(2))
LIMIT_S = 2.0


def ask(url: str, how: str, folder: Path) -> object:
    """A whole recording of, or a whole scoring by, the server at ``url``."""
    with Remote(url, KEY, read_timeout_s=LIMIT_S) as remote:
        if how == "score":
            return score_url(remote, PromptSet("p", PROMPTS, "0"), max_tokens=4)
        facts = server_facts(remote)
        if facts is None:
            raise InputError(f"{url} is no llama-server")
        plan = TracePlan(PROMPTS, 4, 64, Sampling().applied("server"), top=2)
        path = folder / "t.trace"
        try:
            return record(ServerTarget(remote, facts, None), plan, path)
        finally:
            if path.exists():
                sound(path)
                path.unlink()


def sound(path: Path) -> None:
    """What was recorded can be read, and no number in it is none."""
    for reply in TraceFile(path):
        assert (reply.tokens >= 0).all()
        assert (reply.tokens < 50).all()
        for values in (reply.logp, reply.chain_logp, reply.margin):
            assert not any(math.isnan(v) for v in values)


def head(handler: BaseHTTPRequestHandler, *lines: str) -> None:
    text = "\r\n".join(("HTTP/1.1 200 OK", *lines)) + "\r\n\r\n"
    handler.wfile.write(text.encode())


def endless(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Content-Type: application/json")
    block = b'{"a": [' + b"0," * (1 << 19)
    while True:
        handler.wfile.write(block)


def endless_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        handler.wfile.write(b"X-A: " + b"a" * 60_000 + b"\r\n")


def dripping(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Content-Length: 1000000")
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def dripping_head(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
    while True:
        handler.wfile.write(b"a")
        time.sleep(0.05)


def dripping_without_length(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Connection: close")
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def silent(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(4 * LIMIT_S)


def bomb(handler: BaseHTTPRequestHandler) -> None:
    """Half a gigabyte of nothing in half a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    head(handler, "Content-Encoding: gzip", f"Content-Length: {len(data)}")
    handler.wfile.write(data)


def empty_lists(handler: BaseHTTPRequestHandler) -> None:
    """Small on the wire, and a hundred times that as Python's objects."""
    data = b"[" + b"[]," * (80 << 20) + b"[]]"
    head(handler, f"Content-Length: {len(data)}")
    handler.wfile.write(data)


def page(handler: BaseHTTPRequestHandler) -> None:
    text = b"<!doctype html><html><title>\x1b[2JLogin</title></html>"
    head(handler, "Content-Type: text/html", f"Content-Length: {len(text)}")
    handler.wfile.write(text)


def cut(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Content-Length: 1000")
    handler.wfile.write(b'{"tokens": [1')
    handler.connection.shutdown(socket.SHUT_RDWR)


def nested(handler: BaseHTTPRequestHandler) -> None:
    data = b"[" * 1_000_000
    head(handler, f"Content-Length: {len(data)}")
    handler.wfile.write(data)


def digits(handler: BaseHTTPRequestHandler) -> None:
    data = b'{"tokens": [' + b"9" * 1_000_000 + b"]}"
    head(handler, f"Content-Length: {len(data)}")
    handler.wfile.write(data)


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n" + bytes(range(256)))


LIES: tuple[Callable[[BaseHTTPRequestHandler], None], ...] = (
    *(endless, endless_head, dripping, dripping_head, dripping_without_length, silent, bomb),
    *(empty_lists, page, cut, nested, digits, no_http),
)


@pytest.fixture
def _small_memory() -> Iterator[None]:
    """A gigabyte more than now: an answer that takes more raises MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


PATHS = ("/props", "/tokenize", "/completion")
HOW = ("trace", "score")
SOME = [(lie, PATHS[i % 3], HOW[i % 2]) for i, lie in enumerate(LIES) if lie is not empty_lists]
"""Each once, but for one that costs seconds of parsing."""
EVERYWHERE = [(lie, path, how) for lie in LIES for path in PATHS for how in HOW]
CASES = [*SOME, *(pytest.param(*c, marks=pytest.mark.soak) for c in EVERYWHERE if c not in SOME)]


def named(case: object) -> str:
    return getattr(case, "__name__", str(case)).removeprefix("/")


@pytest.mark.usefixtures("_small_memory")
@pytest.mark.parametrize(("lie", "path", "how"), CASES, ids=named)
def test_lies_are_refused_soon(
    lie: Callable[[BaseHTTPRequestHandler], None],
    path: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attacks: Counter[str],
) -> None:
    """The lie told at ``path`` ends the command within its limits, with its place and no key."""
    monkeypatch.setattr("cook.engines.server_api.GET_TIMEOUT_S", LIMIT_S)
    with liar({path: Raw(lie)}) as server:
        started = time.monotonic()
        with pytest.raises((InputError, StepError)) as caught:
            ask(server.url, how, tmp_path)
        assert time.monotonic() - started < 30
    assert server.url in caught.value.message
    assert KEY not in caught.value.message
    if lie in (dripping, dripping_without_length):
        assert "the answer took more than" in caught.value.message
    attacks["lies of servers"] += 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("how", HOW)
def test_the_key_follows_no_redirect(
    status: int, how: str, tmp_path: Path, attacks: Counter[str]
) -> None:
    with liar() as other:
        for path in honest():

            def elsewhere(handler: BaseHTTPRequestHandler, path: str = path) -> None:
                handler.send_response(status)
                handler.send_header("Location", other.url + path)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            with liar({path: Raw(elsewhere)}) as server:
                with suppress(CookError):
                    ask(server.url, how, tmp_path)
                assert set(server.keys) == {f"Bearer {KEY}"}
                attacks["redirects"] += 1
        assert other.asked == [], "a redirect was followed"


def damaged(value: Any, random: Random) -> Any:
    """``value`` with one thing in it of another type or size."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        return value | {key: damaged(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        return [*value[:at], damaged(value[at], random), *value[at + 1 :]]
    return random.choice(VALUES)


@pytest.mark.parametrize("numbers", [range(60), at_length(range(60, 6_000))], ids=str)
def test_wrong_types(numbers: range, tmp_path: Path, attacks: Counter[str]) -> None:
    random = Random()
    told: dict[str, Any] = {}
    answers = {
        path: (lambda body, path=path: told.get(path, _plain(path, body))) for path in honest()
    }
    with liar(answers) as server:
        for number in numbers:
            random.seed(number)
            path = random.choice(list(honest()))
            example = _plain(path, {"content": "words", "tokens": [1, 2], "n_predict": 4})
            told.clear()
            told[path] = damaged(example, random)
            how = HOW[number % 2]
            try:
                ask(server.url, how, tmp_path)
            except (InputError, StepError):
                pass
            except Exception as error:
                raise AssertionError(f"{how} {number}: {path} told {told[path]!r}") from error
            attacks["answers of wrong types"] += 1


def _plain(path: str, body: dict[str, Any]) -> Any:
    answer = honest()[path]
    return answer(body) if callable(answer) else answer


def test_what_is_honest_is_taken(tmp_path: Path) -> None:
    with liar() as server:
        for how in HOW:
            ask(server.url, how, tmp_path)
    assert set(server.keys) == {f"Bearer {KEY}"}
