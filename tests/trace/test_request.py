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

from cook.engines.process.supervisor import Supervisor
from cook.errors import CookError, InputError
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
    told, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    report = json.loads(told)
    assert (report["replies"], report["asked"]) == (6, 6 - kept)
    assert broken.read_bytes() == whole.read_bytes()

    other = start(engine_home, broken, "--temperature", "0.7")
    _, errors = other.communicate(timeout=300)
    assert other.returncode == 2
    assert "other conditions" in errors
    assert "sampler" in errors
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--target", "absent.gguf"), "absent.gguf"),
        (("--target", TARGET, "--prompts", "absent.jsonl"), "absent.jsonl"),
        (("--target", TARGET, "--max-tokens", "9000"), "no room"),
        (("--target", "http://user:secret@host"), "address with a user"),
        (("--target", "http://user:secret@host", "--batch-width", "2"), "address with a user"),
        (("--target", "http://127.0.0.1:9", "--batch-width", "2"), "one token at a time"),
        (("--target", "http://127.0.0.1:9"), "Connect"),
    ],
)
def test_bad_input_leaves_no_trace_and_no_traceback(
    tmp_path: Path, engine_home: Path, arguments: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "t.trace"
    done = subprocess.run(
        [sys.executable, "-m", "cook", "trace", *arguments, "-o", str(file)],
        env={**os.environ, "COOK_HOME": str(engine_home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (1, 2, 5)
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert not file.exists()


def recording(target: str) -> TraceRequest:
    return TraceRequest(target, Path("t.trace"), context=512)


def test_a_file_needs_an_engine(tmp_path: Path, tiny_model: Path) -> None:
    how = recording(str(tiny_model))
    with (
        pytest.raises(InputError, match="no engine to run it"),
        open_target(how, None, Supervisor(tmp_path)),
    ):
        pass


def test_an_address_without_an_answer(tmp_path: Path) -> None:
    how = recording("http://127.0.0.1:9")
    with (
        pytest.raises(CookError, match=r"127\.0\.0\.1:9"),
        open_target(how, None, Supervisor(tmp_path)),
    ):
        pass


def test_a_server_s_file_is_taken_from_this_machine_only(tmp_path: Path, tiny_model: Path) -> None:
    here, there = "http://127.0.0.1:8080", "http://10.0.0.7:8080"
    assert _own_file(here, str(tiny_model)) == tiny_model
    assert _own_file(there, str(tiny_model)) is None
    assert _own_file(here, tiny_model.name) is None
    assert _own_file(here, None) is None
    (tmp_path / "text").write_text("no model")
    assert _own_file(here, str(tmp_path / "text")) is None


@pytest.mark.parametrize("end", ["", "/v1"])
def test_a_server_that_sends_text_only_is_refused(fake: Any, tmp_path: Path, end: str) -> None:
    how = recording(fake({}).url + end)
    with (
        pytest.raises(InputError, match="is no llama-server") as caught,
        open_target(how, None, Supervisor(tmp_path)),
    ):
        pass
    assert "llama-server" in str(caught.value.hint)
