"""A small HTTP server whose answers a test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@dataclass
class Fake:
    """``answers``: path -> function of the request's JSON to (status, JSON or raw bytes)."""

    answers: dict[str, Answer]
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def fake() -> Iterator[Callable[[dict[str, Answer]], Fake]]:
    """Starts a server on loopback; a path without an answer is 404."""
    servers = []

    def start(answers: dict[str, Answer]) -> Fake:
        told = Fake(answers)

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                told.asked.append((self.path, body))
                told.keys.append(self.headers.get("Authorization"))
                answer = told.answers.get(self.path)
                status, document = answer(body) if answer else (404, {"error": {"message": "no"}})
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told.url = f"http://127.0.0.1:{server.server_port}"
        return told

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
