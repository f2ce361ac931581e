"""Servers that lie: an honest little llama-server whose answers a test replaces one by one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMINGS = {"prompt_n": 5, "prompt_ms": 10.0, "predicted_n": 4, "predicted_ms": 20.0}


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """An honest answer: as many tokens as were asked for, each with its likeliest."""
    count = body["n_predict"]
    token = {"id": 7, "token": "x", "logprob": -0.1}
    return {
        "content": "x" * count,
        "tokens": [7] * count,
        "stop_type": "limit",
        "timings": {**TIMINGS, "predicted_n": count},
        "completion_probabilities": [{**token, "top_logprobs": [token]}] * count,
    }


@dataclass
class Liar:
    """``answers``: path -> JSON, a function of the request's JSON to it, or a ``Raw`` answer."""

    answers: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    asked: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Raw:
    """Whatever ``write`` sends, head included; it may go on until the client is gone."""

    write: Callable[[BaseHTTPRequestHandler], None]


def honest() -> dict[str, Any]:
    return {
        "/props": {
            "build_info": "b1-abc",
            "model_path": "/m/T.gguf",
            "default_generation_settings": {"n_ctx": 4096},
        },
        "/slots": [{"id": 0, "speculative": False}],
        "/v1/models": {"data": [{"id": "t", "meta": {"n_vocab": 50}}]},
        "/tokenize": lambda body: {"tokens": [i % 50 for i in range(len(body["content"]))]},
        "/detokenize": lambda body: {"content": "x" * len(body["tokens"])},
        "/completion": completion,
    }


@contextmanager
def liar(answers: Mapping[str, Any] | None = None) -> Iterator[Liar]:
    """Honest but for ``answers`` by path; one without an answer (or with None) is 404."""
    told = Liar(honest() | dict(answers or {}))

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            told.asked.append(self.path)
            told.keys.append(self.headers.get("Authorization"))
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            answer = told.answers.get(self.path)
            answer = answer(body) if callable(answer) else answer
            with suppress(OSError):  # the client has had enough
                if isinstance(answer, Raw):
                    answer.write(self)
                else:
                    self._answer(200 if answer is not None else 404, json.dumps(answer).encode())

        def _answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that left is no news."""

    server = Quiet(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
