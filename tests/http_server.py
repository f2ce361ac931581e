"""A small HTTP server on loopback whose answers a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Raw:
    """Whatever ``write`` sends, head included; it may go on until the client is gone."""

    write: Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Status:
    """JSON or bytes with a status and headers of its own."""

    status: int
    document: Any = field(default_factory=lambda: {"error": {"message": "no"}})
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Fake:
    """``answers``: path -> JSON, bytes, :class:`Status`, :class:`Raw`, or a function of the
    request's JSON to one of these; a path without an answer (or with None) is 404."""

    answers: dict[str, Any]
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and JSON of every request."""
    keys: list[str | None] = field(default_factory=list)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that left is no news."""


@contextmanager
def serving(answers: Mapping[str, Any], key: str | None = None) -> Iterator[Fake]:
    """A server of ``answers``; where ``key`` is given, to who has it."""
    fake = Fake(dict(answers))

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            fake.asked.append((self.path, body))
            fake.keys.append(self.headers.get("Authorization"))
            answer = fake.answers.get(self.path)
            answer = answer(body) if callable(answer) else answer
            if key is not None and fake.keys[-1] != f"Bearer {key}":
                answer = Status(401, {"error": {"message": "Invalid API Key"}})
            elif answer is None:
                answer = Status(404)
            with suppress(OSError):  # the client has had enough
                if isinstance(answer, Raw):
                    answer.write(self)
                else:
                    self._answer(answer if isinstance(answer, Status) else Status(200, answer))

        def _answer(self, answer: Status) -> None:
            document = answer.document
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = _Quiet(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
