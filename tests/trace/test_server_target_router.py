"""The bundled engine's own router: one address, a model chosen by name, its context the child's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.engines.base import Engine
from cook.engines.server import free_port
from cook.engines.server_api import Remote
from cook.errors import CookError
from cook.formats.trace_file import TraceFile
from cook.paths import demo_dir

pytestmark = pytest.mark.engine

PRESETS = """\
version = 1

[target]
model = {model}
ctx-size = 2048
threads = 1

[draft]
model = {model}
alias = small
ctx-size = 1024
threads = 1
"""
ASK = ("--prompts", "demo", "--limit", "2", "--max-tokens", "8")


@pytest.fixture(scope="module")
def url(bundled: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A router's address; it and its children are gone afterwards."""
    home, port = tmp_path_factory.mktemp("router"), str(free_port())
    presets = home / "presets.ini"
    presets.write_text(PRESETS.format(model=demo_dir() / "draft-f16.gguf"))
    words = ("--models-preset", str(presets), "--host", "127.0.0.1", "--port", port)
    router = subprocess.Popen(
        [str(bundled.tool("server")), *words, "--offline"],
        env={**bundled.environment(), "HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        answers = False
        while not answers:
            assert router.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
            with suppress(CookError), Remote(address) as remote:
                answers = remote.get("/health") is not None
        yield address
    finally:
        router.terminate()
        try:
            router.wait(60)
        finally:
            with pytest.raises(ProcessLookupError):  # no child is left of its session
                os.killpg(router.pid, signal.SIGKILL)


@pytest.mark.parametrize(("model", "context"), [("target", 2048), ("small", 1024)])
def test_a_model_is_traced_by_its_name_or_alias(
    model: str, context: int, url: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "t.trace"
    asked = ("trace", "--target", url, "--model", model, "-o", str(path), *ASK)
    assert main([*asked, "--context", "4096", "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["replies"] == 2
    header = TraceFile(path).header
    assert (header.context, header.target_name) == (context, "draft-f16.gguf")
    assert header.tokenizer is not None, "the child's file is on this machine"


def test_a_model_is_scored_by_its_alias(url: str, capsys: Any) -> None:
    assert main(["score", "--url", url, "--model", "small", *ASK, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], len(document["runs"])) == ("draft-f16.gguf", 2)
    assert document["total"]["decode"]["value"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "is a router of several models"),
        (("--model", "nonesuch"), "has no model 'nonesuch'"),
    ],
)
def test_the_models_are_listed_where_none_is_chosen(
    more: tuple[str, ...], message: str, url: str, tmp_path: Path, capsys: Any
) -> None:
    for door in (("score", "--url", url), ("trace", "-o", str(tmp_path / "t"), "--target", url)):
        assert main([*door, *more, *ASK]) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert "draft, small, target" in printed
