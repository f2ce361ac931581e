"""``cook trace``: killed at any moment it goes on where it was, and ends in the same trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cook.cli.main import main
from cook.engines.process.supervisor import Supervisor
from cook.errors import InputError
from cook.formats.trace_file import TraceFile
from cook.paths import demo_dir
from cook.trace.request import TraceRequest, _own_file, open_target

TARGET = str(demo_dir() / "target-q8_0.gguf")
ASK = ("--prompts", "demo", "--limit", "6", "--max-tokens", "24", "--threads", "1")


def start(home: Path, file: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cook", "trace", "--target", TARGET, "-o", str(file), *ASK, *more],
        env={**os.environ, "COOK_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.engine
def test_killed_and_run_again(bundled: Any, engine_home: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.trace", tmp_path / "broken.trace"
    assert start(engine_home, whole).wait(300) == 0
    victim = start(engine_home, broken)
    header_bytes = TraceFile(whole).path.stat().st_size // 6
    deadline = time.monotonic() + 120
    while not broken.exists() or broken.stat().st_size < header_bytes:
        assert victim.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    kept = len(TraceFile(broken))
    again = start(engine_home, broken, "--json")
    printed, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    report = json.loads(printed)
    assert (report["replies"], report["asked"]) == (6, 6 - kept)
    assert broken.read_bytes() == whole.read_bytes()

    other = start(engine_home, broken, "--temperature", "0.7")
    _, errors = other.communicate(timeout=300)
    assert other.returncode == 2
    assert "other conditions" in errors
    assert "sampler" in errors
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "absent.gguf"), "absent.gguf"),
        (("--target", TARGET, "--prompts", "absent.jsonl"), "absent.jsonl"),
        (("--target", TARGET, "--max-tokens", "9000"), "no room"),
        (("--target", "http://user:secret@host", "--batch-width", "2"), "address with a user"),
        (("--target", "http://127.0.0.1:9", "--batch-width", "2"), "one token at a time"),
        (("--target", "http://127.0.0.1:9"), "Connect"),
        (
            ("--target", "http://127.0.0.1:9", "--max-tokens", "20000", "--context", "32768"),
            "--max-tokens 20,000: of a server's answer, which has 64 tokens with probabilities "
            "for each, 15,267 can be read",
        ),
        (("--target", TARGET, "--top-p", "0", "--temperature", "1"), "--top-p"),
    ],
)
def test_bad_input_leaves_no_trace_and_no_traceback(
    tmp_path: Path, capsys: Any, arguments: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "t.trace"
    assert main(["trace", *arguments, "-o", str(file)]) in (1, 2, 5)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert "secret" not in printed
    assert not file.exists()


def test_targets_that_cannot_be_opened(fake: Any, tmp_path: Path, tiny_model: Path) -> None:
    url = fake({}).url
    for target, message in (
        (str(tiny_model), "no engine to run it"),
        (url, f"{url} is no llama-server"),
        (f"{url}/v1", f"{url} is no llama-server"),
    ):
        how = TraceRequest(target, Path("t.trace"), context=512)
        opened = open_target(how, None, Supervisor(tmp_path))
        with pytest.raises(InputError, match=message) as caught, opened:
            pass
        assert target == str(tiny_model) or "llama-server" in str(caught.value.hint)


def test_a_server_s_file_is_taken_from_this_machine_only(tmp_path: Path, tiny_model: Path) -> None:
    here, there = "http://127.0.0.1:8080", "http://10.0.0.7:8080"
    assert _own_file(here, str(tiny_model)) == tiny_model
    assert _own_file(there, str(tiny_model)) is None
    assert _own_file(here, tiny_model.name) is None
    assert _own_file(here, None) is None
    (tmp_path / "text").write_text("no model")
    assert _own_file(here, str(tmp_path / "text")) is None
