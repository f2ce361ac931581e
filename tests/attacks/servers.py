"""Servers that lie: an honest little llama-server whose answers a test replaces one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.http_server import Fake, serving

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
def liar(answers: Mapping[str, Any] | None = None) -> Iterator[Fake]:
    """Honest but for ``answers`` by path."""
    with serving(honest() | dict(answers or {})) as server:
        yield server
