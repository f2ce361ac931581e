"""Servers that lie to ``cook trace --target URL`` and ``cook score --url`` are refused, soon.

What they say never ends in a traceback, in memory that is not there, in a trace with nonsense in
it, or in the key going anywhere but to the address that was given.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Callable
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
from tests.attacks.conftest import at_length, memory_bounded
from tests.attacks.mutants import VALUES
from tests.attacks.servers import honest, liar
from tests.http_server import Raw

EMPTY_LISTS = "empty lists"
"""Small on the wire, and a hundred times that as Python's objects."""
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


OK = b"HTTP/1.1 200 OK\r\n"


def sized(data: bytes, *lines: bytes) -> bytes:
    """An answer that says how long it is."""
    lines = (*lines, b"Content-Length: %d" % len(data))
    return OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + data


def bomb() -> bytes:
    """Half a gigabyte of nothing in half a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()


Lie = tuple[bytes, bytes, float]
LIES: dict[str, Callable[[], Lie]] = {
    "endless": lambda: (OK + b'\r\n{"a": [', b"0," * (1 << 19), 0),
    "endless head": lambda: (OK, b"X-A: " + b"a" * 60_000 + b"\r\n", 0),
    "dripping": lambda: (OK + b"Content-Length: 1000000\r\n\r\n", b" ", 0.05),
    "dripping head": lambda: (OK + b"X-A: ", b"a", 0.05),
    "dripping, of no length": lambda: (OK + b"Connection: close\r\n\r\n", b" ", 0.05),
    "silent": lambda: (b"", b"", 4 * LIMIT_S),
    "bomb": lambda: (sized(bomb(), b"Content-Encoding: gzip"), b"", 0),
    EMPTY_LISTS: lambda: (sized(b"[" + b"[]," * (80 << 20) + b"[]]"), b"", 0),
    "page": lambda: (
        sized(b"<!doctype html><title>\x1b[2JLogin", b"Content-Type: text/html"),
        b"",
        0,
    ),
    "cut": lambda: (OK + b'Content-Length: 1000\r\n\r\n{"tokens": [1', b"", 0),
    "nested": lambda: (sized(b"[" * 1_000_000), b"", 0),
    "digits": lambda: (sized(b'{"tokens": [' + b"9" * 1_000_000 + b"]}"), b"", 0),
    "no HTTP": lambda: (b"SSH-2.0-OpenSSH_9.9\r\n" + bytes(range(256)), b"", 0),
}
"""What is sent at first, then again and again, and the pause after each."""


def raw(lie: Lie) -> Raw:
    first, again, pause_s = lie

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(first)
        time.sleep(pause_s)
        while again:
            handler.wfile.write(again)
            time.sleep(pause_s)

    return Raw(write)


PATHS = ("/props", "/tokenize", "/completion")
HOW = ("trace", "score")
SOME = [(lie, PATHS[i % 3], HOW[i % 2]) for i, lie in enumerate(LIES) if lie != EMPTY_LISTS]
"""Each once, but for one that costs seconds of parsing."""
EVERYWHERE = [(lie, path, how) for lie in LIES for path in PATHS for how in HOW]


@pytest.mark.parametrize(
    ("lie", "path", "how"), [*SOME, *(at_length(*case) for case in EVERYWHERE if case not in SOME)]
)
def test_lies_are_refused_soon(
    lie: str,
    path: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attacks: Counter[str],
) -> None:
    """A lie at ``path`` ends the command within its limits, with its place and no key."""
    monkeypatch.setattr("cook.engines.server_api.GET_TIMEOUT_S", LIMIT_S)
    with memory_bounded(), liar({path: raw(LIES[lie]())}) as server:
        started = time.monotonic()
        with pytest.raises((InputError, StepError)) as caught:
            ask(server.url, how, tmp_path)
        assert time.monotonic() - started < 30
    assert server.url in caught.value.message
    assert KEY not in caught.value.message
    if lie.startswith("dripping") and "head" not in lie:
        assert "the answer took more than" in caught.value.message
    attacks["lies of servers"] += 1


@pytest.mark.parametrize("status", [302, 307])
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
    lies: dict[str, Any] = {}
    answers = {
        path: (lambda body, path=path: lies.get(path, _plain(path, body))) for path in honest()
    }
    with liar(answers) as server:
        for number in numbers:
            random.seed(number)
            path = random.choice(list(honest()))
            example = _plain(path, {"content": "words", "tokens": [1, 2], "n_predict": 4})
            lies.clear()
            lies[path] = damaged(example, random)
            how = HOW[number % 2]
            try:
                ask(server.url, how, tmp_path)
            except (InputError, StepError):
                pass
            except Exception as error:
                raise AssertionError(f"{how} {number}: {path} says {lies[path]!r}") from error
            attacks["answers of wrong types"] += 1


def _plain(path: str, body: dict[str, Any]) -> Any:
    answer = honest()[path]
    return answer(body) if callable(answer) else answer


def test_what_is_honest_is_taken(tmp_path: Path) -> None:
    with liar() as server:
        for how in HOW:
            ask(server.url, how, tmp_path)
    assert set(server.keys) == {f"Bearer {KEY}"}
