"""``cook score --url``: usage, the key's way, and the table of a server that answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.attacks.servers import TIMINGS, honest
from tests.http_server import serving

COUNTS = {"predicted_n": 41, "predicted_ms": 1000.0, "draft_n": 40, "draft_n_accepted": 30}
KEY = "open-sesame-123"


@pytest.fixture
def url() -> Iterator[str]:
    """A server that wants KEY."""
    completion = {"content": "x", "timings": TIMINGS | COUNTS}
    with serving(honest() | {"/slots": [], "/completion": completion}, KEY) as server:
        yield server.url


@pytest.fixture
def asking(cook: Any) -> Any:
    """A cook with two categories of prompts next to it, and the key in its environment."""
    rows = [{"id": f"p{i}", "category": "ab"[i % 2], "prompt": f"{i} words"} for i in range(4)]
    (cook.directory / "p.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return replace(cook, environment={**cook.environment, "COOK_API_KEY": KEY})


def test_json_and_no_key_anywhere(asking: Any, url: str) -> None:
    done = asking("score", "--url", url, "--prompts", "p.jsonl", "--json")
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["total"]["acceptance"]["value"] == 0.75
    assert document["total"]["acceptance"]["numerator"] == 120
    assert list(document["categories"]) == ["a", "b"]
    assert document["total"]["decode"]["value"] == 40.0
    assert len(document["runs"]) == 4
    assert KEY not in done.stdout + done.stderr
    done = asking("score", "--url", url, "--prompts", "p.jsonl", "--quiet")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:4] for row in rows] == [
        ["a", "2", "60/80", "75.0%"],
        ["b", "2", "60/80", "75.0%"],
        ["all", "4", "120/160", "75.0%"],
    ]


def test_threads_of_the_configuration_are_no_setting_of_the_server(asking: Any, url: str) -> None:
    configured = replace(asking, environment={**asking.environment, "COOK_THREADS": "4"})
    done = configured("score", "--url", url, "--prompts", "p.jsonl", "--json")
    assert done.status == 0, done.stderr


def test_the_key_from_a_file_or_none(cook: Any, asking: Any, url: str) -> None:
    (cook.directory / "key").write_text(KEY + "\n")
    arguments = ("score", "--url", url, "--prompts", "p.jsonl", "-q")
    assert cook(*arguments, "--api-key-file", "key").status == 0
    done = cook(*arguments)
    assert done.status == 1
    assert "refuses the key" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "ftp://127.0.0.1"),
        ("--url", "file:///etc/passwd"),
        ("--url", f"http://me:{KEY}@127.0.0.1"),
        ("--url", "http://127.0.0.1:8080", "--target", "T.gguf"),
        ("--url", "http://127.0.0.1:8080", "--n-max", "4"),
    ],
)
def test_usage(cook: Any, arguments: tuple[str, ...]) -> None:
    done = cook("score", *arguments)
    assert (done.status, done.stdout) == (2, "")
    assert KEY not in done.stderr


def test_no_server_there(cook: Any) -> None:
    done = cook("score", "--url", "http://127.0.0.1:9", "--limit", "1")
    assert done.status == 1
    assert "is the server running?" in done.stderr
